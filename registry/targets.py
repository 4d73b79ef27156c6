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
from typing import Literal, NamedTuple

from .errors import ConfigError
from .pattern_sets import PatternSet
from .patterns import MAX_REGEX_TOTAL, MAX_REGEXES, Pattern, PatternBudget

MAX_ENTRIES = 1_000_000
"""Entries of all targets and ignore lists together. Lists that spell out every module of a large model are legal."""

_PREFIX = "re:"


class TargetMatch(NamedTuple):
    """``group`` is the name of the config group, ``target`` its entry as written, ``how`` what it matched by."""

    group: str
    target: str
    how: Literal["name", "regex", "class"]


class TargetAnswer(NamedTuple):
    """All that the config says about one module: see the methods of :class:`TargetIndex` of these names."""

    ignored_by: str | None
    match: TargetMatch | None
    engine_order_differs: TargetMatch | None


class _Known:
    """What is known of all modules that the same regular expressions match and that have the same classes, apart from
    entries that are a module's exact name."""

    __slots__ = ("answer", "by_regex", "ignore_hits", "matches", "target_hits")

    def __init__(self, answer: TargetAnswer, matches: tuple[TargetMatch, ...], by_regex: str | None) -> None:
        self.answer = answer
        self.matches = matches
        self.by_regex = by_regex  # the first regular expression that matches, in the order of the config
        self.target_hits: tuple[str, ...] = ()  # entries that hit, until they are noted
        self.ignore_hits: tuple[str, ...] = ()


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
            raise ConfigError(
                "too many targets", field="config_groups", observed=entries + len(ignore),
                required=f"at most {MAX_ENTRIES}", code="QD509",
            )  # fmt: skip
        self._regexes = tuple(origin)
        self._scanner = PatternSet(_compile(origin, self._budget), self._budget) if origin else None
        # compressed-tensors sorts by whether "re:" stands anywhere in the entry, then by text.
        ranked = sorted(self._group_of, key=lambda target: ("re:" in target, target))
        self._rank = {target: rank for rank, target in enumerate(ranked)}
        self._position = {target: position for position, target in enumerate(self._group_of)}
        self._literals = {entry for entry in (*self._group_of, *self._ignore) if not entry.startswith(_PREFIX)}
        self._known: dict[tuple[str, ...], dict[tuple[int, ...], _Known]] = {}
        self._last: tuple[str | None, tuple[str, ...] | None, _Known] = (None, None, _NOTHING)
        self._hit_targets: set[str] = set()
        self._hit_ignore: set[str] = set()

    @property
    def budget(self) -> PatternBudget:
        """What is left of the time for regular expressions; hand it to further indexes of the same plan."""
        return self._budget

    # ----------------------------------------------------------------------------------------------------- questions

    def ignored_by(self, name: str, classes: Sequence[str]) -> str | None:
        """The ignore entry that excludes the module, or ``None``: its name first, then regular expressions, then
        classes, each in the order of the list."""
        known = self._about(name, classes)
        if known.ignore_hits:
            self._note_ignore(known)
        return known.answer.ignored_by

    def match(self, name: str, classes: Sequence[str]) -> TargetMatch | None:
        """The target that decides for the module, or ``None``. Does not look at the ignore list."""
        known = self._about(name, classes)
        if known.target_hits:
            self._note_targets(known)
        return known.answer.match

    def matches(self, name: str, classes: Sequence[str]) -> list[TargetMatch]:
        """All targets that match the module; the first one decides."""
        known = self._about(name, classes)
        self._note_targets(known)
        return list(known.matches)

    @property
    def regexes(self) -> int:
        """How many regular expressions there are among targets and ignore entries."""
        return len(self._regexes)

    def sign(self, name: str) -> str | bytes:
        """Equal for names that regular expressions answer alike, also with the same text before them."""
        return self._scanner.sign(name) if self._scanner is not None else ""

    def names(self, name: str) -> bool:
        """Is ``name`` a target, word for word? Does not count as a match."""
        return name in self._group_of

    def engine_order_differs(self, name: str, classes: Sequence[str]) -> TargetMatch | None:
        """What an engine takes where that is another group than :meth:`match`, else ``None``.

        vLLM and SGLang try names and regular expressions in the order of the config, and classes only after them; of a
        target in two groups the first place counts, with the last group's args.
        """
        known = self._about(name, classes)
        self._note_targets(known)
        return known.answer.engine_order_differs

    def match_many(self, names: Sequence[str], classes: Iterable[Sequence[str]]) -> list[TargetAnswer]:
        """All of the above for each name with its classes, in order; much faster than name by name.

        Every target and ignore entry that hits counts as matched.
        """
        self._budget.widen(len(names))
        found = self._scanner.scan_many(names) if self._scanner is not None else ((),) * len(names)
        answers: list[TargetAnswer] = []
        last: Sequence[str] | None = None
        group: tuple[str, ...] = ()
        of_classes: dict[tuple[int, ...], _Known] = {}
        literals = self._literals
        for name, regexes, its_classes in zip(names, found, classes, strict=True):
            if its_classes is not last:
                group = its_classes if type(its_classes) is tuple else _as_tuple(its_classes)
                last = group
                of_classes = self._known.setdefault(group, {})
            known = of_classes.get(regexes) or self._learn(regexes, group)
            if known.ignore_hits:
                self._note_ignore(known)
            if known.target_hits:
                self._note_targets(known)
            if name not in literals:
                answers.append(known.answer)
            elif (answer := self._with_literal(name, group, known)) is not None:
                answers.append(answer)
                if name in self._ignore:
                    self._hit_ignore.add(name)
                if name in self._group_of:
                    self._hit_targets.add(name)
            else:
                known = self._resolve(name, regexes, group)
                self._note_ignore(known)
                self._note_targets(known)
                answers.append(known.answer)
        return answers

    def note_ignored(self, names: Sequence[str], classes: Iterable[Sequence[str]]) -> None:
        """Count as matched the ignore entries that mean any of the modules, as :meth:`ignored_by` does."""
        self._budget.widen(len(names))
        found = self._scanner.scan_many(names) if self._scanner is not None else ((),) * len(names)
        for name, regexes, its_classes in zip(names, found, classes, strict=True):
            group = its_classes if type(its_classes) is tuple else _as_tuple(its_classes)
            known = self._known.setdefault(group, {}).get(regexes) or self._learn(regexes, group)
            if name in self._literals:
                known = self._about_literal(name, regexes, group, known)
            self._note_ignore(known)

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

    def _about(self, name: str, classes: Sequence[str]) -> _Known:
        """The same module is asked about several times in a row, by the same objects."""
        last_name, last_classes, known = self._last
        if last_name is name and last_classes is classes:
            return known
        if type(classes) is not tuple:
            classes = _as_tuple(classes)
        regexes = self._scanner.scan(name) if self._scanner is not None else ()
        try:
            known = self._known[classes][regexes]
        except KeyError:
            known = self._learn(regexes, classes)
        if name in self._literals:
            known = self._about_literal(name, regexes, classes, known)
        self._last = (name, classes, known)
        return known

    def _learn(self, regexes: tuple[int, ...], classes: tuple[str, ...]) -> _Known:
        known = self._resolve(None, regexes, classes)
        self._known.setdefault(classes, {})[regexes] = known
        return known

    def _with_literal(self, name: str, classes: tuple[str, ...], known: _Known) -> TargetAnswer | None:
        """The answer for a module whose name is an entry, from what is known without that, or ``None`` where it has to
        be found afresh. Lists may spell out every module of a model, so this must be quick."""
        if "re:" in name or name in classes or name in _UNLISTED or "InternalModule" in classes:
            return None
        ignored, match, engine = known.answer
        if name in self._ignore:
            ignored = name
        group = self._group_of.get(name)
        if group is not None:
            match, engine, first = TargetMatch(group, name, "name"), None, known.by_regex
            if first is not None and self._position[first] < self._position[name] and self._group_of[first] != group:
                engine = TargetMatch(self._group_of[first], first, "regex")
        return TargetAnswer(ignored, match, engine)

    def _about_literal(self, name: str, regexes: tuple[int, ...], classes: tuple[str, ...], known: _Known) -> _Known:
        answer = self._with_literal(name, classes, known)
        if answer is None:
            return self._resolve(name, regexes, classes)
        matches, target_hits = known.matches, known.target_hits
        if answer.match is not None and name in self._group_of:
            matches, target_hits = (answer.match, *matches), (*target_hits, name)
        more = _Known(answer, matches, known.by_regex)
        more.target_hits = target_hits
        more.ignore_hits = (*known.ignore_hits, name) if name in self._ignore else known.ignore_hits
        return more

    def _resolve(self, name: str | None, regexes: tuple[int, ...], classes: tuple[str, ...]) -> _Known:
        """By the rules, in one go. ``name`` is ``None`` for a module whose name is no entry."""
        by_class = _class_names(classes)
        if by_class is None:
            return _NOTHING
        rank, position = self._rank, self._position
        texts = [self._regexes[i] for i in regexes]
        exact = {name} if name is not None and not name.startswith(_PREFIX) else set()
        by_name = {t for t in (*exact, *texts) if t in rank}
        only_class = {c for c in by_class if c in rank and c not in by_name}
        hits = (*sorted(by_name, key=rank.__getitem__), *sorted(only_class, key=rank.__getitem__))
        matches = tuple(self._as_match(target, target in by_name) for target in hits)
        winner = matches[0] if matches else None
        engine = None
        if winner is not None:
            first = min(by_name or only_class, key=position.__getitem__)
            if self._group_of[first] != winner.group:
                engine = self._as_match(first, first in by_name)
        listed = [[e for e in entries if e in self._ignore] for entries in (exact, texts, by_class)]
        ignored = next((min(entries, key=self._ignore.__getitem__) for entries in listed if entries), None)
        by_regex = min((t for t in texts if t in rank), key=position.__getitem__, default=None)
        known = _Known(TargetAnswer(ignored, winner, engine), matches, by_regex)
        known.target_hits = hits
        known.ignore_hits = tuple(entry for entries in listed for entry in entries)
        return known

    def _as_match(self, target: str, by_name: bool) -> TargetMatch:
        if not by_name:
            return TargetMatch(self._group_of[target], target, "class")
        return TargetMatch(self._group_of[target], target, "regex" if target.startswith(_PREFIX) else "name")

    def _note_targets(self, known: _Known) -> None:
        self._hit_targets.update(known.target_hits)
        known.target_hits = ()

    def _note_ignore(self, known: _Known) -> None:
        self._hit_ignore.update(known.ignore_hits)
        known.ignore_hits = ()


_NOTHING = _Known(TargetAnswer(None, None, None), (), None)
_UNLISTED = frozenset({"Module", "Linear", "object"})  # classes that a module may have or not, whatever it lists


def _strings(entries: Iterable[str], field: str) -> Iterable[str]:
    if isinstance(entries, str):
        raise ConfigError(
            "a list of names is needed", field=field, observed=entries, required="a list of strings", code="QD508"
        )
    for entry in entries:
        if not isinstance(entry, str):
            raise ConfigError(
                "an entry is not a string", field=field, observed=entry, required="a string", code="QD508"
            )
        yield entry


def _compile(origin: dict[str, str], budget: PatternBudget) -> list[Pattern]:
    total = sum(map(len, origin))
    if len(origin) > MAX_REGEXES or total > MAX_REGEX_TOTAL:
        raise ConfigError(
            "too many or too long regular expressions in targets and ignore",
            field=next(iter(origin.values())),
            observed=f"{len(origin)} regular expressions of {total} characters",
            required=f"at most {MAX_REGEXES} of {MAX_REGEX_TOTAL} characters together",
            code="QD509",
        )
    return [Pattern(entry.removeprefix(_PREFIX), budget, field) for entry, field in origin.items()]


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
