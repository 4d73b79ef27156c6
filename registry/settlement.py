"""Which rules can live together: conflicts among plugins, and between plugins and built-in rules, settled.

All rules are collected first and every round looks at all that are left before it drops any, so that the outcome does
not depend on an order. Built-in rules always stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .rules.rule import Rule
from .table import find_cycle

if TYPE_CHECKING:
    from .analysis.conflicts import Conflicts, Overlap

#: codes of problems because of which rules or kernels are out; the others only say that something is odd
DISABLING = frozenset({"name-clash", "unknown-override", "override-cycle", "overlap"})


@dataclass(frozen=True)
class RegistryProblem:
    """Something wrong among the plugins; the affected rules or kernels are out, everything else stands.

    ``code``: one of ``DISABLING``, or ``empty-rule``, ``not-decided``, ``broken-plugin``. ``subject``: what it is
    about, ``"rule"``, ``"kernel"`` or ``"plugin"``.
    """

    code: str
    message: str
    distributions: tuple[str, ...]
    subject: str = "rule"

    def __str__(self) -> str:
        return self.message

    def to_json(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message, "distributions": list(self.distributions)}


def settle(own: Sequence[Rule], foreign: Sequence[Rule]) -> tuple[list[Rule], list[RegistryProblem]]:
    """The rules that can live together, ``own`` among them, and why the others of ``foreign`` are out."""
    settling = _Settling(own, foreign)
    if foreign:  # built-in rules among themselves are checked by the tests and by `rules --check`, not at every start
        settling.names()
        settling.cycles()
        settling.overlaps()
    return [*own, *settling.alive()], settling.problems


class _Settling:
    def __init__(self, own: Sequence[Rule], foreign: Sequence[Rule]) -> None:
        self.own, self.foreign = list(own), list(foreign)
        self.problems: list[RegistryProblem] = []
        self._out: set[int] = set()

    def alive(self) -> list[Rule]:
        return [rule for rule in self.foreign if id(rule) not in self._out]

    def _report(self, code: str, message: str, rules: Sequence[Rule]) -> None:
        self.problems.append(RegistryProblem(code, message, tuple(sorted({r.distribution for r in rules}))))

    def _drop(self, code: str, message: str, rules: Sequence[Rule]) -> None:
        self._report(code, message, rules)
        self._out.update(map(id, rules))

    def names(self) -> None:
        """Names that are taken, and overrides that name nobody. A name is known even if its rules are disabled."""
        own = {rule.name for rule in self.own}
        for rule in self.foreign:
            namesakes = [r for r in self.foreign if r.name == rule.name]
            if rule.name in own:
                text = f"rule {rule.name} of {rule.distribution} has the name of a built-in rule"
                self._drop("name-clash", text, [rule])
            elif len(namesakes) > 1 and id(rule) not in self._out:
                places = ", ".join(f"{r.distribution} ({r.source})" for r in namesakes)
                text = f"rule {rule.name} is registered by {places}: all of them are disabled"
                self._drop("name-clash", text, namesakes)
        known = own | {rule.name for rule in self.foreign}
        for rule in self.alive():
            missing = sorted(set(rule.overrides) - known)
            if missing:
                text = f"rule {rule.name} of {rule.distribution} overrides unknown {', '.join(missing)}"
                self._drop("unknown-override", text, [rule])

    def cycles(self) -> None:
        while cycle := find_cycle({rule.name: rule.overrides for rule in self.alive()}):
            members = [rule for rule in self.alive() if rule.name in cycle]
            homes = {rule.name: f"{rule.name} ({rule.distribution})" for rule in members}
            circle = " -> ".join(homes[name] for name in cycle)
            self._drop("override-cycle", f"overrides form a cycle: {circle}: all disabled", members)

    def overlaps(self) -> None:
        """Until nothing overlaps: a rule that is out may have been the one that decided between two others."""
        while True:
            found = self._conflicts()
            for overlap in found.overlaps:
                self._drop_overlap(overlap)
            if not found.overlaps:
                break
        for rule in found.empty:
            text = f"rule {rule.name} of {rule.distribution} ({rule.source}) matches no legal layer"
            self._report("empty-rule", text, [rule])
        for rule in found.open:
            text = f"whether rule {rule.name} of {rule.distribution} ({rule.source}) overlaps others is not decided"
            self._report("not-decided", f"{text}: its alternatives take too many steps", [rule])

    def _conflicts(self) -> Conflicts:
        from .analysis.conflicts import conflicts

        alive = self.alive()
        return conflicts([*self.own, *alive], {rule.name for rule in alive})

    def _drop_overlap(self, overlap: Overlap) -> None:
        pair = [overlap.first, overlap.second]
        losers = [rule for rule in pair if not any(rule is other for other in self.own)]
        verb = f"{losers[0].name} is disabled" if len(losers) == 1 else "both are disabled"
        self._drop("overlap", f"rules {overlap}: {verb}", losers)
