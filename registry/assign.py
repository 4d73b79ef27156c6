"""Every module to its group, its ignore entry, or neither; and what that shows about the config.

Two passes: all names are asked first, because only then is it known which entries of the config match nothing, and
such an entry may be what explains a layer that is stored dense.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .arbitration import Namespaces, is_stored_dense, mapping
from .config_models import ConfigGroup, QuantConfig
from .families import Family, Modules
from .modules import LINEAR, Module, config_parts, modules_above, quantized_names
from .problem import Problem
from .resolver import DENSE, Assignment
from .scope import Scope
from .targets import TargetAnswer, TargetIndex, TargetMatch
from .transforms import Transforms

MATRIX_KINDS = frozenset({"linear", "moe", "embedding", "lm_head"})
_SHOWN = 3


@dataclass
class Assigned:
    """``assignments`` by module name; a module without one is neither a layer nor attention that the config means."""

    assignments: dict[str, Assignment] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


class _Place(NamedTuple):
    """What becomes of a module. ``doubtful``: quantized by the config and stored dense. ``order``: what takes it here,
    and what by the order of the groups. ``overlap``: the pattern that takes it, and one of another group that would.
    ``outside``: the config does not speak of that part of the model. ``unlisted``: stored dense, which a translated
    config need not say."""

    assignment: Assignment | None = None
    doubtful: bool = False
    order: tuple[str, str] | None = None
    overlap: tuple[str, str] | None = None
    outside: bool = False
    unlisted: bool = False


def assign(modules: Modules, config: QuantConfig, index: TargetIndex, transforms: Transforms) -> Assigned:
    """Place ``modules``. Raises ``ConfigError`` when a regular expression runs out of time."""
    result = Assigned()
    orders: dict[tuple[str, str], list[str]] = {}
    overlaps: dict[tuple[str, str], list[str]] = {}
    doubtful: list[str] = []
    outside: list[str] = []
    unlisted: list[str] = []
    placing = _Placing(modules, config, index, transforms)
    result.assignments = placing.assignments
    for name, place in placing.noted:
        if place.order is not None:
            orders.setdefault(place.order, []).append(name)
        elif place.overlap is not None:
            overlaps.setdefault(place.overlap, []).append(name)
        if place.doubtful:
            doubtful.append(name)
        if place.outside:
            outside.append(name)
        if place.unlisted:
            unlisted.append(name)
    explained = _renamed(doubtful, index, result)
    if outside:
        text = f"{_count(outside)} left dense: {config.path} speaks of another part of the model"
        result.problems.append(Problem("outside-config", text, "note", outside[0]))
    if unlisted:
        text = f"{_count(unlisted)} stored dense and left so: configs like the translated one need not list them"
        result.problems.append(Problem("stored-dense", text, "note", unlisted[0]))
    result.problems += [_order_problem(ours, theirs, names) for (ours, theirs), names in orders.items()]
    result.problems += [_overlap_problem(ours, theirs, names) for (ours, theirs), names in overlaps.items()]
    result.problems += _unmatched(modules, index, explained)
    return result


_UNKNOWN = Assignment()


class _Placing:
    """Places modules one by one, and those of a family that the config says the same of together.

    ``assignments``: by module. ``noted``: those of which there is something to say.
    """

    def __init__(self, modules: Modules, config: QuantConfig, index: TargetIndex, transforms: Transforms) -> None:
        self._modules = modules
        self._config = config
        self._index = index
        self._transforms = transforms
        self._groups = {group.name: group for group in config.groups}
        self._scope = Scope(config.path, modules.families)
        self._known: dict[Any, Assignment] = {}
        self._above: dict[str, set[str]] = {}  # by group, the modules above any that its targets match
        self.assignments: dict[str, Assignment] = {}
        self.noted: list[tuple[str, _Place]] = []
        self._place_all()

    def _place_all(self) -> None:
        families, index = self._modules.families, self._index
        others = {name: family for name, family in families.items() if family.kind is None}
        # never quantized, but an ignore entry may mean them
        index.note_ignored(list(others), [family.classes for family in others.values()])
        layers = {name: family for name, family in families.items() if family.kind is not None}
        names, classes = list(layers), [family.classes for family in layers.values()]
        answers = index.match_many(names, classes)
        online = self._transforms.online_many(names, classes)
        known: dict[tuple[Family, int, tuple[str, ...]], Assignment | None] = {}
        for (name, family), answer, transforms in zip(layers.items(), answers, online, strict=True):
            key = (family, id(answer), transforms)  # an answer lives as long as the list of them
            assignment = known.get(key, _UNKNOWN)
            if assignment is _UNKNOWN:
                place = self._place(name, family, answer, transforms)
                assignment = place.assignment
                if any(place[1:]):
                    self.noted.append((name, place))
                elif self._scope.whole and family.kind != "attention":
                    known[key] = assignment
            if assignment is not None:
                self.assignments[name] = assignment

    def _place(self, name: str, family: Family, answer: TargetAnswer, online: tuple[str, ...]) -> _Place:
        ignored, match, outside = answer.ignored_by, answer.match, False
        if not self._scope.whole:
            inside = self._scope.inside(name)
            if inside is not None and inside != name:
                ignored = ignored or self._index.ignored_by(inside, family.classes)
                match = self._index.match(inside, family.classes) or match
            elif inside is None and not quantized_names(family.tensors, self._config.stored_names):
                outside = match is not None and ignored is None and family.kind in MATRIX_KINDS
                match = None
        if ignored is not None or match is None:
            left = family.kind in MATRIX_KINDS or online
            return _Place(self._assignment(None, None, ignored, online) if left else None, outside=outside)
        group = self._groups[match.group]
        stored_dense = group.weights is not None and is_stored_dense(family.tensors)
        if stored_dense and self._config.translated_by is not None:
            return _Place(self._assignment(None, None, None, online), unlisted=True)
        if family.kind == "attention":
            if self._means_attention(group, name):
                return _Place(self._assignment(group, match.target, None, online))
            return _Place(self._assignment(None, None, None, online) if online else None)
        # engines read a foreign config by other code
        other = answer.engine_order_differs if self._config.translated_by is None else None
        return _Place(
            self._assignment(group, match.target, None, online),
            stored_dense and self._config.effective_format(group) != DENSE,
            other and (_entry(match.group, match.target), _entry(other.group, other.target)),
            self._overlap(name, family, match),
        )

    def _overlap(self, name: str, family: Family, match: TargetMatch) -> tuple[str, str] | None:
        """Two patterns of groups that differ: which one was meant is for the config's author to say; a plugin that
        translates one knows."""
        if match.how != "regex" or len(self._groups) == 1 or self._config.translated_by is not None:
            return None
        ours = self._groups[match.group]
        for other in self._index.matches(name, family.classes)[1:]:
            theirs = self._groups[other.group]
            if other.how == "regex" and theirs is not ours and not self._config.alike(ours, theirs):
                return _entry(match.group, match.target), _entry(other.group, other.target)
        return None

    def _means_attention(self, group: ConfigGroup, name: str) -> bool:
        """compressed-tensors quantizes attention itself only by a target that hits it and none of its children, and has
        no weights to quantize there."""
        if group.weights is not None or (group.inputs is None and group.outputs is None):
            return False
        above = self._above.get(group.name)
        if above is None:
            families = self._modules.families
            only = TargetIndex([(group.name, group.targets)], budget=self._index.budget)
            answers = only.match_many(list(families), [family.classes for family in families.values()])
            matched = [other for other, answer in zip(families, answers, strict=True) if answer.match is not None]
            above = self._above[group.name] = set(modules_above(matched))
        return name not in above

    def _assignment(
        self, group: ConfigGroup | None, target: str | None, ignored_by: str | None, online: tuple[str, ...]
    ) -> Assignment:
        key = (group and group.name, target, ignored_by, online)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Assignment(group, target, ignored_by, online)
        return found


def add_missing_head(modules: Modules, index: TargetIndex) -> None:
    """A head that shares the embedding's tensor has none of its own; targeted by name it must have."""
    if index.names("lm_head") and not has_head(modules):
        modules.add(Module("lm_head", "lm_head", LINEAR, "Linear, named by a target"))


def has_head(modules: Modules) -> bool:
    return any(family.kind == "lm_head" for family in set(modules.families.values()))


def _entry(group: str, target: str) -> str:
    return f"{target!r} in {group}"


def _order_problem(ours: str, theirs: str, names: list[str]) -> Problem:
    return Problem(
        "engine-order",
        f"{_count(names)} taken by {ours}, as compressed-tensors sorts targets; engines that go by the order of the "
        f"groups take {theirs}",
        where=names[0],
    )


def _overlap_problem(ours: str, theirs: str, names: list[str]) -> Problem:
    return Problem(
        "target-overlap",
        f"{_count(names)} matched by both {ours} and {theirs}: the first counts, as compressed-tensors sorts targets",
        where=names[0],
    )


def _renamed(doubtful: Iterable[str], index: TargetIndex, result: Assigned) -> set[str]:
    """Layers stored dense that the config quantizes: those that an unmatched ignore entry explains stay dense."""
    doubtful = list(doubtful)
    if not doubtful:
        return set()
    unmatched = [entry for kind, entry in index.unmatched() if kind == "ignore"]
    explained = Namespaces(unmatched, index.budget).explain(doubtful)
    mappings: dict[str, list[str]] = {}
    places: dict[Any, Assignment] = {}
    entries: set[str] = set()
    for name in doubtful:
        entry = explained.get(name)
        if entry is None:
            continue
        entries.add(entry)
        was = result.assignments[name]
        place = (entry, was.transforms)
        result.assignments[name] = places.setdefault(place, Assignment(ignored_by=entry, transforms=was.transforms))
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


def _unmatched(modules: Modules, index: TargetIndex, explained: set[str]) -> list[Problem]:
    left = [(kind, entry) for kind, entry in index.unmatched() if entry not in explained]
    if any(kind == "ignore" for kind, _ in left):
        # modules without tensors of their own (blocks, towers) are in no file, but an entry may well name them
        parents = [name for name in modules_above(modules.families) if name not in modules.families]
        index.note_ignored(parents, [()] * len(parents))
        still = set(index.unmatched())
        left = [item for item in left if item in still]
    return [
        Problem(
            f"unmatched-{kind}", f"{kind} {entry!r} matches no module", "warning" if kind == "target" else "note", entry
        )
        for kind, entry in left
    ]


def without_tied_head(problems: list[Problem], modules: Modules, raw: Mapping[str, object]) -> list[Problem]:
    """Leave out that an entry for the head matches nothing where the head shares the embedding's tensor."""
    tied = any(part.get("tie_word_embeddings") is True for part in config_parts(raw))
    if not tied or has_head(modules):
        return problems
    return [
        p for p in problems
        if not (p.code == "unmatched-ignore" and p.where.removeprefix("re:").rstrip("$").endswith("lm_head"))
    ]  # fmt: skip


def _count(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    return f"{names[0]} is" if len(names) == 1 else f"{len(names)} layers ({shown}) are"
