"""What stands below the head of a group of layers: names, where the decision comes from, what went wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .collapse import collapse_counted
from .grouping import Group
from .page import INDENT, Row, Section, more, said

if TYPE_CHECKING:
    from ..registry.plan import Resolution
    from ..registry.rules import Rule

#: every quantized layer has these, so they tell nothing about it
_USUAL = {"weight_scale", "weight_shape", "bias"}
#: entries of the config shown for one group
MAX_ENTRIES = 12
#: lines of one error or remedy: it is what the reader came for
_WORDS = 6


def name_section(group: Group, width: int) -> list[Section]:
    """The names, collapsed; a single one as it is, and none where it is its own ignore entry and stands there."""
    names = group.names
    if len(names) > 1:
        counted = collapse_counted(names, width - len(INDENT))
    else:
        counted = [] if names[0] == group.first.ignored_by else [(names[0] or '""', 1)]
    rows = [Row(pattern, "cyan", counts=count) for pattern, count in counted]
    return [Section(None, rows, more("pattern", of="layer"))] if rows else []


def origin_section(group: Group) -> list[Section]:
    """The entries of the config that decided, and what was read off the tensors."""
    layer = group.first
    targets = sorted(group.targets().items(), key=lambda item: -item[1])
    several = len(targets) > 1
    if layer.kind == "kv_cache":
        return said("target", *dict.fromkeys(f"attention with a cache, by {where}" for (_, where), _ in targets))
    if layer.target is None or layer.ignored_by is not None:
        return _ignored_section(group)
    telling = [name for name in group.stored() if name not in _USUAL and "." not in name]  # matrices of transforms
    inferred = f"from tensors: {', '.join(telling)}" if telling else layer.inferred
    rows: list[Row] = []
    for (target, where), count in targets:
        notes = [str(count)] if several else []
        notes += [inferred] if inferred and not rows else []
        text = f'"{target}"' + (f" in {where}" if where is not None else "")
        rows.append(Row(text + (f" ({', '.join(notes)})" if notes else "")))
    return [Section("target", rows, more("entry", "entries"), limit=MAX_ENTRIES)]


def _ignored_section(group: Group) -> list[Section]:
    """The ignore entries that decided, the busiest first; an ignore list may have thousands."""
    counts = sorted(group.ignored().items(), key=lambda item: -item[1])
    rows = []
    for entry, count in counts:
        label, text = ("ignored", f'"{entry}"') if entry is not None else ("target", "none: no config group names it")
        rows.append(Row(text + (f" ({count})" if len(counts) > 1 else ""), lead=(f"{label:<9}", "dim")))
    return [Section(None, rows, more("entry", "entries"), limit=MAX_ENTRIES)]


def rule_section(rule: Rule | None) -> list[Section]:
    if rule is None:
        return []
    name = f"{rule.name:<18} "
    return [Section("rule", [Row(name + origin(rule), hang=len(name), most=4)])]


def origin(rule: Rule) -> str:
    """Distribution, version, file and line of a rule."""
    return ", ".join(part for part in (f"{rule.distribution} {rule.version}".strip(), rule.source) if part)


def ranked_section(layer: Resolution, *, brief: bool = False) -> list[Section]:
    """Where the chosen kernel's place comes from, if it is not the usual order. ``brief``: without figures, which are
    those of one layer."""
    text = layer.selection.ranked if layer.selection is not None else ""
    return said("ranked", text.partition(";")[0] if brief else text) if text else []


def listed(label: str, texts: tuple[str, ...]) -> list[Section]:
    """Texts of which any number may be left out."""
    return [Section(label, [Row(text) for text in texts], more("of these", "of these"))] if texts else []


def failure_sections(group: Group) -> list[Section]:
    """What went wrong, what came closest, what would help."""
    error = group.first.error
    if error is None:
        return []
    found = [Section("error", _counted(group.failures(), "bold red"), more("error", of="layer"))]
    if group.first.scheme is None:
        found += listed("nearest", tuple(str(candidate) for candidate in getattr(error, "nearest", ())))
    remedies = _counted(group.remedies(), "yellow")
    return found + ([Section("remedy", remedies, more("remedy", "remedies"))] if remedies else [])


def _counted(counts: dict[str, int], style: str) -> list[Row]:
    """The busiest first, with the number of layers where there are several."""
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    rows = []
    for text, count in ranked:
        share = f" ({count} layer{'s' if count != 1 else ''})" if len(ranked) > 1 else ""
        rows.append(Row(text + share, style, counts=count, most=_WORDS))
    return rows
