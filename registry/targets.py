"""Which config group a module belongs to, and which ignore entry excludes it.

The meaning is that of the writer, compressed-tensors (0.20.1: ``utils/match.py``, ``quantization/lifecycle/apply.py``):
an entry that starts with ``re:`` is a regular expression anchored at the start of the name only, any other is the exact
name of a module or of a class in its MRO. Of several targets that match, exact names come first, then regular
expressions in alphabetical order, then class names in alphabetical order. A target named in two groups belongs to the
last of them. Ignoring a module does not ignore its children.

Names are asked one by one, and there are tens of thousands: literals are hashed, and all regular expressions are
answered together (see :mod:`.pattern_sets`), so that the cost of a name does not grow with the number of entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from .errors import ConfigError
from .pattern_sets import PatternSet
from .patterns import MAX_REGEX_TOTAL, MAX_REGEXES, Pattern, PatternBudget, compile_pattern

MAX_ENTRIES = 1_000_000
"""Entries of all targets and ignore lists together. Lists that spell out every module of a large model are legal."""

_PREFIX = "re:"


@dataclass(frozen=True)
class TargetMatch:
    """``group`` is the name of the config group, ``target`` its entry as written, ``how`` what it matched by."""

    group: str
    target: str
    how: Literal["name", "regex", "class"]


class _Outcome(NamedTuple):
    matches: tuple[TargetMatch, ...]
    winner: TargetMatch | None
    engines: TargetMatch | None  # what an engine would take instead, where that is another group


class TargetIndex:
    """The targets of all config groups and the ignore list, ready to be asked about names.

    ``groups``: (group name, targets) in config order. ``classes`` in every method is the module's MRO as class names,
    most derived first, with only subclasses of ``torch.nn.Module`` in it; ``Module`` itself need not be listed.
    ``budget`` bounds the time of all regular expressions together; share one over a plan.

    Raises ``ConfigError`` for an entry that is not a string, an invalid regular expression, and more or longer regular
    expressions than the caps of :mod:`.patterns` allow; asking raises it when a regular expression runs out of time.
    """

    def __init__(
        self,
        groups: Sequence[tuple[str, Sequence[str]]],
        ignore: Sequence[str] = (),
        *,
        budget: PatternBudget | None = None,
    ) -> None:
        self._budget = budget or PatternBudget()
        self._group_of: dict[str, str] = {}  # in the order of first mention, which is the order that engines use
        self._repeated: list[tuple[str, str, str]] = []
        origin: dict[str, str] = {}  # regular expression -> where it stands, for messages
        entries = 0
        for group, targets in groups:
            field = f"config_groups.{group}.targets"
            entries += len(targets)
            for target in _strings(targets, field):
                previous = self._group_of.get(target)
                if previous is not None and previous != group:
                    self._repeated.append((target, previous, group))
                self._group_of[target] = group
                if target.startswith(_PREFIX):
                    origin.setdefault(target, field)
        self._ignore: dict[str, int] = {}
        for entry in _strings(ignore, "ignore"):
            self._ignore.setdefault(entry, len(self._ignore))
            if entry.startswith(_PREFIX):
                origin.setdefault(entry, "ignore")
        if entries + len(ignore) > MAX_ENTRIES:
            raise ConfigError("too many targets", observed=entries + len(ignore), required=f"at most {MAX_ENTRIES}")
        self._regexes = tuple(origin)
        self._scanner = PatternSet(_compile(origin, self._budget), self._budget) if origin else None
        # compressed-tensors sorts by whether "re:" stands anywhere in the entry, then by text.
        ranked = sorted(self._group_of, key=lambda target: ("re:" in target, target))
        self._rank = {target: rank for rank, target in enumerate(ranked)}
        self._position = {target: position for position, target in enumerate(self._group_of)}
        self._last: tuple[str | None, tuple[int, ...]] = (None, ())
        self._outcomes: dict[tuple[tuple[int, ...], Sequence[str]], _Outcome] = {}
        self._ignored: dict[tuple[tuple[int, ...], Sequence[str]], str | None] = {}
        self._hit_targets: set[str] = set()
        self._hit_ignore: set[str] = set()

    # ----------------------------------------------------------------------------------------------------- questions

    def ignored_by(self, name: str, classes: Sequence[str]) -> str | None:
        """The ignore entry that excludes the module, or ``None``: its name first, then regular expressions, then
        classes, each in the order of the list."""
        if type(classes) is not tuple:
            classes = _as_tuple(classes)
        regexes = self._scan(name)
        if name in self._ignore:  # one module at most: not worth remembering
            return self._ignore_entry(name, regexes, classes)
        key = (regexes, classes)
        try:
            return self._ignored[key]
        except KeyError:
            entry = self._ignored[key] = self._ignore_entry(name, regexes, classes)
            return entry

    def match(self, name: str, classes: Sequence[str]) -> TargetMatch | None:
        """The target that decides for the module, or ``None``. Does not look at the ignore list."""
        return self._outcome(name, classes).winner

    def matches(self, name: str, classes: Sequence[str]) -> list[TargetMatch]:
        """All targets that match the module; the first one decides."""
        return list(self._outcome(name, classes).matches)

    def engine_order_differs(self, name: str, classes: Sequence[str]) -> TargetMatch | None:
        """What an engine takes where that is another group than :meth:`match`, else ``None``.

        vLLM and SGLang try names and regular expressions in the order of the config, and classes only after them; of a
        target in two groups the first place counts, with the last group's args.
        """
        return self._outcome(name, classes).engines

    def unmatched(self) -> list[tuple[str, str]]:
        """``("target" | "ignore", entry)`` for each entry that matched none of the modules asked about so far.

        In config order. A target counts as matched also where another target decides.
        """
        targets = [("target", target) for target in self._group_of if target not in self._hit_targets]
        return targets + [("ignore", entry) for entry in self._ignore if entry not in self._hit_ignore]

    def repeated(self) -> list[tuple[str, str, str]]:
        """(target, group that lost it, group that has it) for each target named in more than one group."""
        return list(self._repeated)

    # ------------------------------------------------------------------------------------------------------ internals

    def _scan(self, name: str) -> tuple[int, ...]:
        """Numbers in ``_regexes`` that match. The same name is asked about several times in a row."""
        if self._scanner is None:
            return ()
        last, found = self._last
        if last == name:
            return found
        found = self._scanner.scan(name)
        self._last = (name, found)
        return found

    def _outcome(self, name: str, classes: Sequence[str]) -> _Outcome:
        if type(classes) is not tuple:
            classes = _as_tuple(classes)
        regexes = self._scan(name)
        if name in self._group_of:
            return self._target_outcome(name, regexes, classes)
        key = (regexes, classes)
        try:
            return self._outcomes[key]
        except KeyError:
            outcome = self._outcomes[key] = self._target_outcome(name, regexes, classes)
            return outcome

    def _target_outcome(self, name: str, regexes: tuple[int, ...], classes: Sequence[str]) -> _Outcome:
        by_class = _class_names(classes)
        if by_class is None:
            return _Outcome((), None, None)
        rank, position = self._rank, self._position
        by_name = {t for i in regexes if (t := self._regexes[i]) in rank}
        if name in rank and not name.startswith(_PREFIX):
            by_name.add(name)
        only_class = {c for c in by_class if c in rank and c not in by_name}
        ordered = sorted(by_name, key=rank.__getitem__) + sorted(only_class, key=rank.__getitem__)
        if not ordered:
            return _Outcome((), None, None)
        self._hit_targets.update(ordered)
        matches = tuple(self._as_match(target, target in by_name) for target in ordered)
        first = min(by_name or only_class, key=position.__getitem__)
        other = self._as_match(first, first in by_name) if self._group_of[first] != matches[0].group else None
        return _Outcome(matches, matches[0], other)

    def _as_match(self, target: str, by_name: bool) -> TargetMatch:
        if not by_name:
            return TargetMatch(self._group_of[target], target, "class")
        return TargetMatch(self._group_of[target], target, "regex" if target.startswith(_PREFIX) else "name")

    def _ignore_entry(self, name: str, regexes: tuple[int, ...], classes: Sequence[str]) -> str | None:
        by_class = _class_names(classes)
        if by_class is None:
            return None
        position = self._ignore
        by_regex = [t for i in regexes if (t := self._regexes[i]) in position]
        of_class = [c for c in by_class if c in position]
        exact = [name] if name in position and not name.startswith(_PREFIX) else []
        self._hit_ignore.update(exact, by_regex, of_class)
        for entries in (exact, by_regex, of_class):
            if entries:
                return min(entries, key=position.__getitem__)
        return None


def _strings(entries: Iterable[str], field: str) -> Iterable[str]:
    if isinstance(entries, str):
        raise ConfigError("a list of names is needed", field=field, observed=entries, required="a list of strings")
    for entry in entries:
        if not isinstance(entry, str):
            raise ConfigError("an entry is not a string", field=field, observed=entry, required="a string")
        yield entry


def _compile(origin: dict[str, str], budget: PatternBudget) -> list[Pattern]:
    total = sum(map(len, origin))
    if len(origin) > MAX_REGEXES or total > MAX_REGEX_TOTAL:
        raise ConfigError(
            "too many or too long regular expressions in targets and ignore",
            field=next(iter(origin.values())),
            observed=f"{len(origin)} regular expressions of {total} characters",
            required=f"at most {MAX_REGEXES} of {MAX_REGEX_TOTAL} characters together",
        )
    return [compile_pattern(text.removeprefix(_PREFIX), budget=budget, field=field) for text, field in origin.items()]


def _as_tuple(classes: Sequence[str]) -> tuple[str, ...]:
    return (classes,) if isinstance(classes, str) else tuple(classes)


def _class_names(classes: Sequence[str]) -> set[str] | None:
    """The class names that targets can match, or ``None`` for a module that compressed-tensors never matches: its own
    helpers (observers, transforms) all derive from ``InternalModule``."""
    names = set(classes)
    if "InternalModule" in names:
        return None
    names.discard("object")  # in every MRO, but not a module class
    names.add("Module")
    if "LinearBase" in names:  # vLLM's base of all linear layers
        names.add("Linear")
    return names
