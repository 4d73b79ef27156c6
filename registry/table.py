"""The rule table: all rules collected, checked for conflicts, frozen, and compiled for look-up.

Nothing depends on the order of registration. Two rules that both match some legal layer must say who wins through
``overrides``; otherwise the table refuses with a witness.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .bounded import Bounded
from .domains import Domain
from .errors import PluginError
from .facts import LayerFacts
from .nearness import cost, least
from .predicates import Mismatch, without_followers
from .rules.rule import Rule
from .values import ABSENT

if TYPE_CHECKING:
    from .analysis.conflicts import Overlap


@dataclass(frozen=True)
class RuleCandidate:
    """One rule's answer for one layer: accepted, or the mismatching fields of its closest box, or who overrides it."""

    rule: Rule
    accepted: bool
    mismatches: tuple[Mismatch, ...] = ()
    overridden_by: str | None = None

    def __str__(self) -> str:
        if self.overridden_by:
            return f"{self.rule.name}: overridden by {self.overridden_by}"
        return f"{self.rule.name}: {'; '.join(map(str, self.mismatches)) or 'accepted'}"

    def to_json(self) -> dict[str, Any]:
        return {
            "rule": self.rule.name,
            "accepted": self.accepted,
            "mismatches": [m.to_json() for m in self.mismatches],
            "overridden_by": self.overridden_by,
        }


@dataclass(frozen=True)
class Decision:
    """The rule for one layer, or ``None``, and what every rule said."""

    rule: Rule | None
    trace: tuple[RuleCandidate, ...]


class RuleTable:
    """Frozen rules. Build through :meth:`build`, which raises on any conflict."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(sorted(rules, key=lambda r: r.name))
        self._beaten_by = {r.name: {o.name for o in self.rules if r.name in o.overrides} for r in self.rules}
        self._boxes = [(index, box) for index, rule in enumerate(self.rules) for box in rule.predicate.boxes]
        tests: dict[str, list[tuple[int, Domain]]] = {}
        for bit, (_, box) in enumerate(self._boxes):
            for name, wanted in box.fields:
                tests.setdefault(name, []).append((bit, wanted))
        self._tests = dict(sorted(tests.items()))
        self._masks: dict[tuple[str, type, Any], int] = Bounded(16384)
        self._refused: dict[tuple[str, type, Any], list[tuple[int, Mismatch, int]]] = Bounded(2048)
        self._decided: dict[LayerFacts, Decision] = Bounded(2048)

    @classmethod
    def build(cls, rules: Iterable[Rule]) -> RuleTable:
        """A table of ``rules``. Raises ``PluginError`` for a name given twice, a bad override, an overlap."""
        rules = list(rules)
        for problem in [*name_clashes(rules), *override_faults(rules)]:
            raise PluginError(
                problem, field="rules", observed=problem,
                required="a name for each, and overrides of rules that are there",
                remedy="rename the rule, or correct its overrides=", code="QD914",
            )  # fmt: skip
        for overlap in overlaps(rules):
            raise PluginError(
                f"undeclared overlap: {overlap}", field="overrides", observed=str(overlap), required="one that wins",
                remedy=f"let one of them say overrides=({overlap.first.name!r},)", code="QD914",
            )  # fmt: skip
        return cls(rules)

    def resolve(self, facts: LayerFacts) -> Decision:
        """The rule that matches ``facts``. Signatures are few and layers many, so decisions are remembered."""
        decision = self._decided.get(facts)
        if decision is None:
            decision = self._decided[facts] = self._decide(facts)
        return decision

    def _matching(self, flat: Mapping[str, Any]) -> set[int]:
        mask = (1 << len(self._boxes)) - 1
        for name, tests in self._tests.items():
            mask &= self._mask(name, flat.get(name, ABSENT), tests)
            if not mask:
                break
        return {self._boxes[bit][0] for bit in range(len(self._boxes)) if mask >> bit & 1}

    def _mask(self, name: str, value: Any, tests: list[tuple[int, Domain]]) -> int:
        """The boxes that admit ``value`` in this field; boxes that do not test the field admit anything."""
        key = (name, type(value), value)
        mask = self._masks.get(key)
        if mask is None:
            mask = (1 << len(self._boxes)) - 1
            for bit, wanted in tests:
                if value not in wanted:
                    mask &= ~(1 << bit)
            self._masks[key] = mask
        return mask

    def _misses(self, flat: Mapping[str, Any]) -> list[tuple[Mismatch, ...]]:
        """For each rule, what keeps a layer out of the box that the least would have to change for.

        As :meth:`.Box.test` says it, for all boxes in one go; a box that cannot be the nearest is not looked at twice.
        """
        found: list[list[Mismatch]] = [[] for _ in self._boxes]
        bounds = [0] * len(self._boxes)
        for name in self._tests:
            for bit, mismatch, at_least in self._mismatches(name, flat.get(name, ABSENT)):
                found[bit].append(mismatch)
                bounds[bit] += at_least
        nearest: list[tuple[Mismatch, ...]] = [()] * len(self.rules)
        costs: list[tuple[int, int] | None] = [None] * len(self.rules)
        for bound, bit in sorted(zip(bounds, range(len(bounds)), strict=True)):
            index = self._boxes[bit][0]
            best = costs[index]
            if best is None or bound <= best[0]:
                mismatches = tuple(without_followers(found[bit]))
                taken = cost(mismatches, flat), len(mismatches)
                if best is None or taken < best:
                    nearest[index], costs[index] = mismatches, taken
        return nearest

    def _mismatches(self, name: str, value: Any) -> list[tuple[int, Mismatch, int]]:
        """The boxes that do not admit ``value`` in this field, with what that costs at least."""
        key = (name, type(value), value)
        known = self._refused.get(key)
        if known is None:
            refused = ((bit, Mismatch(name, value, wanted)) for bit, wanted in self._tests[name] if value not in wanted)
            known = self._refused[key] = [(bit, mismatch, least(mismatch)) for bit, mismatch in refused]
        return known

    def winner(self, facts: LayerFacts) -> Rule | None:
        """The rule alone, without what kept the others out, which takes far longer to say."""
        names = self._winners({self.rules[index].name for index in self._matching(facts.flat)})
        return next((rule for rule in self.rules if rule.name in names), None)

    def _winners(self, matching: set[str]) -> list[str]:
        winners = [name for name in sorted(matching) if not self._beaten_by[name] & matching]
        if len(winners) > 1:
            # the analysis gave up on these (it has a limit): the decision must not hang on luck
            raise PluginError(
                f"rules {', '.join(winners)} all match and none overrides the others", field="overrides",
                observed=", ".join(winners), required="one that wins", code="QD914",
            )  # fmt: skip
        return winners

    def _decide(self, facts: LayerFacts) -> Decision:
        matching = {self.rules[index].name for index in self._matching(facts.flat)}
        self._winners(matching)
        misses = self._misses(facts.flat)
        trace = []
        for index, rule in enumerate(self.rules):
            if rule.name in matching:
                beaten = sorted(self._beaten_by[rule.name] & matching)
                trace.append(RuleCandidate(rule, not beaten, overridden_by=beaten[0] if beaten else None))
            else:
                trace.append(RuleCandidate(rule, False, misses[index]))
        trace.sort(key=lambda c: (not c.accepted, *distance(c, facts.flat)))
        return Decision(next((c.rule for c in trace if c.accepted), None), tuple(trace))

    def nearest(self, facts: LayerFacts, n: int = 3) -> tuple[RuleCandidate, ...]:
        """The ``n`` rules closest to matching, nearest first."""
        return tuple(c for c in self.resolve(facts).trace if not c.accepted)[:n]


def distance(candidate: RuleCandidate, flat: Mapping[str, Any]) -> tuple[int, int, str]:
    """Sort key of nearness: what the mismatches would take, their count, the name."""
    return cost(candidate.mismatches, flat), len(candidate.mismatches), candidate.rule.name


def name_clashes(rules: Iterable[Rule]) -> list[str]:
    """Names that stand for two different rules; the same rule twice is no clash."""
    seen: dict[str, Rule] = {}
    clashes = []
    for rule in rules:
        other = seen.setdefault(rule.name, rule)
        if other is not rule:
            clashes.append(f"rule {rule.name} is registered twice: {other.distribution} and {rule.distribution}")
    return clashes


def override_faults(rules: Iterable[Rule]) -> list[str]:
    """Overrides that name no rule, and cycles among them."""
    rules = list(rules)
    names = {rule.name for rule in rules}
    faults = [
        f"rule {rule.name} ({rule.distribution}) overrides {name!r}, which is not registered"
        for rule in rules
        for name in rule.overrides
        if name not in names
    ]
    graph = {rule.name: [n for n in rule.overrides if n in names] for rule in rules}
    cycle = find_cycle(graph)
    if cycle:
        faults.append(f"overrides form a cycle: {' -> '.join(cycle)}")
    return faults


def find_cycle(graph: Mapping[str, Iterable[str]]) -> list[str] | None:
    """One cycle of the override relation, first name repeated at the end, or ``None``."""
    done: set[str] = set()
    for start in sorted(graph):
        path: list[str] = []
        stack: list[tuple[str, bool]] = [(start, False)]
        while stack:
            name, leaving = stack.pop()
            if leaving:
                path.pop()
                done.add(name)
            elif name in path:
                return [*path[path.index(name) :], name]
            elif name not in done:
                path.append(name)
                stack.append((name, True))
                stack.extend((other, False) for other in graph.get(name, ()))
    return None


def overlaps(rules: Iterable[Rule]) -> list[Overlap]:
    """Pairs of rules, of distinct names, that match one legal layer where nothing says who wins."""
    from .analysis.conflicts import conflicts  # only plugins and checks need it: not at every start

    return list(conflicts(list(rules)).overlaps)
