"""Answers about a table whose rules have names of their own: who matches where, and who wins.

Which rule wins a cell is what :class:`~..table.RuleTable` decides: the one match that no other match overrides.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from ..facts import LayerFacts
from ..legal import LEGAL, Universe
from ..predicates import Predicate
from ..rules.rule import Rule
from ..values import ABSENT
from .matrix import Cell, Matrix, layer
from .sweep import Fuel, bits


@dataclass(frozen=True)
class Spot:
    """A cell as far as rules go: the indices of those that match, as a mask, and of those among them that win."""

    cell: Cell
    rules: int
    winners: int


class Judge:
    """A table's rules, and ``extra`` predicates whose cells may be asked for as well (declared regions)."""

    def __init__(self, rules: Sequence[Rule], universe: Universe = LEGAL, extra: Sequence[Predicate] = ()) -> None:
        self.rules = list(rules)
        self.matrix = Matrix([*(rule.predicate for rule in self.rules), *extra], universe)
        self._owner = [i for i, boxes in enumerate(self.matrix.of) for _ in range(boxes.bit_count())]
        self._witnesses: dict[int, LayerFacts | None] = {}
        index = {rule.name: i for i, rule in enumerate(self.rules)}
        #: for each rule those that override it
        self.beaters = [0] * len(self.rules)
        for i, rule in enumerate(self.rules):
            for name in rule.overrides:
                if name in index and name != rule.name:
                    self.beaters[index[name]] |= 1 << i

    def spots(self, index: int, fuel: Fuel) -> list[Spot]:
        """Where predicate ``index`` matches. Raises ``OutOfFuel``."""
        cells = self.matrix.cells(self.matrix.of[index], fuel)
        # what is asked of a spot takes a few steps for each box that matches there
        fuel.spend(4 * sum(cell.mask.bit_count() for cell in cells))
        return [self._spot(cell) for cell in cells]

    def spot(self, facts: LayerFacts) -> Spot:
        """A single layer, as a spot of its own."""
        return self._spot(Cell(self.matrix.match(facts), 1, ()))

    def owners(self, boxes: int) -> set[int]:
        """The rules that have these boxes."""
        return {self._owner[bit] for bit in bits(boxes)} & set(range(len(self.rules)))

    def _spot(self, cell: Cell) -> Spot:
        matching = sum(1 << owner for owner in self.owners(cell.mask))
        return Spot(cell, matching, self.winners(matching))

    def winners(self, matching: int) -> int:
        """The rules of ``matching`` that no other of them overrides: one, unless something is wrong."""
        return sum(1 << i for i in bits(matching) if not self.beaters[i] & matching)

    def outcome(self, winners: int) -> Hashable:
        """What a layer gets: a scheme with what is said of engines, nothing, or a conflict."""
        if winners.bit_count() != 1:
            return ("conflict", winners) if winners else None
        rule = self.rules[winners.bit_length() - 1]
        return rule.scheme, repr(sorted(rule.equivalents.items())), repr(sorted(rule.differs.items()))

    def witness(self, spot: Spot) -> LayerFacts | None:
        """A layer in a spot, checked against every rule; ``None`` should one of them see it otherwise."""
        if spot.cell.mask not in self._witnesses:
            self._witnesses[spot.cell.mask] = self._witness(spot)
        return self._witnesses[spot.cell.mask]

    def _witness(self, spot: Spot) -> LayerFacts | None:
        values = spot.cell.values
        plain = {n: v for n, v in values.items() if not n.endswith(".zp_dtype")}
        for tried in ({**plain, **{n: None for n in values if n not in plain and values[n] is not ABSENT}}, values):
            facts = layer({**values, **tried})
            if self.matrix.match(facts) == spot.cell.mask:
                return facts
        return None

    def names(self, mask: int) -> list[Rule]:
        return [self.rules[i] for i in bits(mask)]


def irredundant(candidates: int, needs: Sequence[int]) -> int | None:
    """A part of ``candidates`` that has a bit in each of ``needs`` and none that could be left out; or ``None``."""
    if not all(need & candidates for need in needs):
        return None
    chosen = candidates
    for i in bits(candidates):
        less = chosen & ~(1 << i)
        if all(need & less for need in needs):
            chosen = less
    return chosen
