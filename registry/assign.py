"""Every module to its group, its ignore entry, or neither; and what that shows about the config.

Two passes: all names are asked first, because only then is it known which entries of the config match nothing, and
such an entry may be what explains a layer that is stored dense.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .arbitration import Namespaces, is_stored_dense, mapping
from .config_models import ConfigGroup, QuantConfig
from .modules import LINEAR, Module, config_parts
from .problem import Problem
from .resolver import DENSE, Assignment
from .targets import TargetIndex
from .transforms import Transforms

MATRIX_KINDS = frozenset({"linear", "moe", "embedding", "lm_head"})
_SHOWN = 3


@dataclass
class Assigned:
    """``assignments`` by module name; a module without one is neither a layer nor attention that the config means."""

    assignments: dict[str, Assignment] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def assign(modules: Mapping[str, Module], config: QuantConfig, index: TargetIndex, transforms: Transforms) -> Assigned:
    """Place ``modules``. Raises ``ConfigError`` when a regular expression runs out of time."""
    groups = {group.name: group for group in config.groups}
    result = Assigned()
    orders: dict[tuple[str, str], list[str]] = {}
    places: dict[Any, Assignment] = {}  # layers are many, places in a config few
    doubtful: list[str] = []
    for name, module in modules.items():
        ignored = index.ignored_by(name, module.classes)
        if module.kind is None:
            continue
        match = index.match(name, module.classes)
        online = transforms.online(module) if transforms else ()
        if ignored is not None or match is None:
            if module.kind in MATRIX_KINDS or online:
                result.assignments[name] = Assignment(ignored_by=ignored, transforms=online)
            continue
        group = groups[match.group]
        if module.kind == "attention":
            if _means_attention(group, name, modules):
                result.assignments[name] = Assignment(group, match.target, transforms=online)
            elif online:
                result.assignments[name] = Assignment(transforms=online)
            continue
        place = places.get((match, online))
        if place is None:
            place = places[match, online] = Assignment(group, match.target, transforms=online)
        result.assignments[name] = place
        other = index.engine_order_differs(name, module.classes)
        if other is not None:
            orders.setdefault((_entry(match.group, match.target), _entry(other.group, other.target)), []).append(name)
        if group.weights is not None and is_stored_dense(module.tensors) and config.effective_format(group) != DENSE:
            doubtful.append(name)
    explained = _renamed(doubtful, index, result)
    result.problems += [_order_problem(ours, theirs, names) for (ours, theirs), names in orders.items()]
    result.problems += _unmatched(modules, index, explained)
    return result


def add_missing_head(modules: dict[str, Module], index: TargetIndex) -> None:
    """A head that shares the embedding's tensor has none of its own; targeted by name it must have."""
    match = index.match("lm_head", LINEAR)
    if match is not None and match.how == "name" and not any(m.kind == "lm_head" for m in modules.values()):
        modules["lm_head"] = Module("lm_head", "lm_head", LINEAR, "Linear, named by a target")


def _means_attention(group: ConfigGroup, name: str, modules: Mapping[str, Module]) -> bool:
    """compressed-tensors quantizes attention itself only by a target that hits it and none of its children, and has no
    weights to quantize there."""
    if group.weights is not None or (group.inputs is None and group.outputs is None):
        return False
    only = TargetIndex([(group.name, group.targets)])
    children = (m for other, m in modules.items() if other.startswith(name + "."))
    return not any(only.match(child.name, child.classes) for child in children)


def _entry(group: str, target: str) -> str:
    return f"{target!r} in {group}"


def _order_problem(ours: str, theirs: str, names: list[str]) -> Problem:
    return Problem(
        "engine-order",
        f"{_count(names)} taken by {ours}, as compressed-tensors sorts targets; engines that go by the order of the "
        f"groups take {theirs}",
        where=names[0],
    )


def _renamed(doubtful: Iterable[str], index: TargetIndex, result: Assigned) -> set[str]:
    """Layers stored dense that the config quantizes: those that an unmatched ignore entry explains stay dense."""
    doubtful = list(doubtful)
    if not doubtful:
        return set()
    namespaces = Namespaces([entry for kind, entry in index.unmatched() if kind == "ignore"])
    mappings: dict[str, list[str]] = {}
    entries: set[str] = set()
    for name in doubtful:
        entry = namespaces.explain(name)
        if entry is None:
            continue
        entries.add(entry)
        was = result.assignments[name]
        result.assignments[name] = Assignment(ignored_by=entry, transforms=was.transforms)
        mappings.setdefault(mapping(entry, name), []).append(name)
    result.problems += [
        Problem(
            "namespace-mismatch",
            f"{_count(names)} stored dense though no ignore entry has that name: the entries fit if read as {how}",
            where=names[0],
        )
        for how, names in mappings.items()
    ]
    return entries


def _unmatched(modules: Mapping[str, Module], index: TargetIndex, explained: set[str]) -> list[Problem]:
    left = [(kind, entry) for kind, entry in index.unmatched() if entry not in explained]
    if any(kind == "ignore" for kind, _ in left):
        # modules without tensors of their own (blocks, towers) are in no file, but an entry may well name them
        for parent in _containers(modules):
            index.ignored_by(parent, ())
        still = set(index.unmatched())
        left = [item for item in left if item in still]
    return [
        Problem(
            f"unmatched-{kind}", f"{kind} {entry!r} matches no module", "warning" if kind == "target" else "note", entry
        )
        for kind, entry in left
    ]


def without_tied_head(
    problems: list[Problem], modules: Mapping[str, Module], raw: Mapping[str, object]
) -> list[Problem]:
    """Leave out that an entry for the head matches nothing where the head shares the embedding's tensor."""
    tied = any(part.get("tie_word_embeddings") is True for part in config_parts(raw))
    if not tied or any(m.kind == "lm_head" for m in modules.values()):
        return problems
    return [
        p for p in problems
        if not (p.code == "unmatched-ignore" and p.where.removeprefix("re:").rstrip("$").endswith("lm_head"))
    ]  # fmt: skip


def _containers(modules: Mapping[str, Module]) -> Iterable[str]:
    """Every module above those with tensors, once."""
    seen = set(modules)
    for name in modules:
        while (name := name.rpartition(".")[0]) and name not in seen:
            seen.add(name)
            yield name


def _count(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    return f"{names[0]} is" if len(names) == 1 else f"{len(names)} layers ({shown}) are"
