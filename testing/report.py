"""A failed row for people: which field, what decided, what kept the expected rule or kernel out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence

from ..registry.errors import QuantDispatchError
from ..registry.facts import SIDES
from ..registry.registry import Registry
from ..registry.resolution import Resolution
from ..registry.rules import Rule
from ..registry.table import RuleCandidate
from .comparing import Difference
from .observing import Observation
from .rows import Row

_INDENT = " " * 14


def failure_text(row: Row, seen: Observation, found: Sequence[Difference], registry: Registry) -> str:
    """The whole message of a row that does not hold."""
    place = f" ({row.where})" if row.where else ""
    lines = [f'row "{row.id}"{place} does not hold', *_line("asked", asked(row, seen.layer))]
    for difference in found:
        lines += [
            *_line(difference.field, f"expected  {difference.expected}"),
            f"{_INDENT}observed  {difference.observed}",
        ]
    lines += decided_by(seen)
    fields = {difference.field for difference in found}
    if fields & {"rule", "scheme", "error", "near"}:
        lines += kept_out(row, seen, registry)
    if fields & {"kernel", "backend", "error", "deviations", "conditions"}:
        lines += kernel_lines(row, seen, registry)
    return "\n".join(lines)


def _line(label: str, text: str) -> Iterator[str]:
    yield f"  {label:<11} {text}"


def _block(label: str, entries: Iterable[str]) -> list[str]:
    lines = list(entries)
    return [*_line(label, lines[0]), *(f"{_INDENT}{line}" for line in lines[1:])] if lines else []


def asked(row: Row, layer: Resolution | None) -> str:
    """The layer and the place in words."""
    words = [f"{row.form} {row.asks[row.form]}"] if isinstance(row.asks.get(row.form), str) else []
    if layer is not None:
        words += [layer.name, layer.kind]
        words += [f"{side} {args.describe()}" for side in SIDES if (args := getattr(layer, side)) is not None]
        words += [f"format {layer.format}"] if layer.format else []
    else:
        words += [f"{key} {value}" for key, value in row.asks.items() if key != row.form]
    if "shape" in row.asks:
        words.append("N {}, K {}".format(*row.asks["shape"]))
    words += [f"device {row.asks.get('device', 'cpu')}", str(row.asks.get("dtype", "bfloat16"))]
    return ", ".join(words)


def decided_by(seen: Observation) -> list[str]:
    """The rule that decided and where it stands, or that none did and which came nearest."""
    layer = seen.layer
    if layer is None:
        return []
    if layer.rule is not None:
        rule = layer.rule
        origin = " ".join(part for part in (rule.distribution, rule.version) if part)
        return [*_line("decided by", f"rule {rule.name} ({', '.join(part for part in (origin, rule.source) if part)})")]
    nearest = [candidate for candidate in layer.trace.rules if not candidate.accepted][:3]
    return _block("decided by", ["no rule; nearest are", *map(str, nearest)]) if layer.trace.rules else []


def kept_out(row: Row, seen: Observation, registry: Registry) -> list[str]:
    """For every expected rule, or rule of the expected scheme: the fields that kept it out."""
    if seen.layer is None:
        return []
    trace = {candidate.rule.name: candidate for candidate in seen.layer.trace.rules}
    wanted = row.expects.get("rule") or ""
    names = [wanted] if wanted else _rules_of(row.expects.get("scheme") or "", registry)
    names += [name for name in row.expects.get("near", ()) if name in trace]
    entries = [_why(name, trace[name], seen) for name in dict.fromkeys(names) if name in trace]
    if wanted and wanted not in trace:
        entries.append(_unknown("rule", wanted, [rule.name for rule in registry.rules.rules]))
    if not wanted and not names and row.expects.get("scheme"):
        entries.append(f"no rule of this registry has the scheme {row.expects['scheme']}")
    return _block("kept out", [entry for entry in entries if entry])


def _why(name: str, candidate: RuleCandidate, seen: Observation) -> str:
    if candidate.accepted:
        return "" if seen.layer is not None and seen.layer.rule is candidate.rule else f"{name}: accepted"
    return str(candidate)


def _rules_of(scheme: str, registry: Registry) -> list[str]:
    return [rule.name for rule in registry.rules.rules if scheme and _scheme_name(rule, registry) == scheme]


def _scheme_name(rule: Rule, registry: Registry) -> str:
    try:
        return registry.scheme_class(rule).name
    except QuantDispatchError:  # a scheme that cannot be imported is no answer to another question
        return ""


def kernel_lines(row: Row, seen: Observation, registry: Registry) -> list[str]:
    """Every kernel in the order in which it was asked, with what it said."""
    layer = seen.layer
    if layer is None:
        return []
    width = max((len(candidate.kernel.name) for candidate in layer.trace.kernels), default=0)
    entries = []
    for candidate in layer.trace.kernels:
        reasons = "; ".join(candidate.reasons)
        chosen = "chosen" if candidate.kernel.name == layer.kernel else ""
        entries.append(f"{candidate.kernel.name:<{width}}  {candidate.status:<3}  {chosen or reasons}".rstrip())
    kernel = row.expects.get("kernel") or ""
    if kernel and not any(candidate.kernel.name == kernel for candidate in layer.trace.kernels):
        known = {k.name: k for k in registry.kernels}
        if kernel in known:
            op = layer.spec.op if layer.spec is not None else "nothing, as no kernel was looked for"
            entries.append(f"{kernel} was not asked: it computes {known[kernel].op}, the layer needs {op}")
        else:
            entries.append(_unknown("kernel", kernel, list(known)))
    return _block("kernels", entries)


def _unknown(what: str, name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"; near names: {', '.join(near)}" if near else ""
    return f"{name}: this registry has no such {what}{hint}"
