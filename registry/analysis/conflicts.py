"""Undeclared overlaps alone, as building a table and collecting plugins need them: quick, and without other checks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..facts import LayerFacts
from ..legal import LEGAL, Universe
from ..rules.rule import Rule
from .findings import listed, words
from .judge import Judge
from .sweep import Fuel, OutOfFuel, bits

#: for each rule; a fraction of a second
FUEL = 250_000


@dataclass(frozen=True)
class Overlap:
    """Two rules that both match a legal layer where no matching rule overrides either of them."""

    first: Rule
    second: Rule
    witness: LayerFacts

    def __str__(self) -> str:
        return f"{listed([self.first, self.second])} both match {words(self.witness)}"


@dataclass(frozen=True)
class Conflicts:
    """``overlaps``; ``empty``: rules that match no legal layer; ``open``: rules that took too many steps to tell."""

    overlaps: tuple[Overlap, ...]
    empty: tuple[Rule, ...]
    open: tuple[Rule, ...]


def conflicts(
    rules: Sequence[Rule], about: Collection[str] | None = None, *, universe: Universe = LEGAL, fuel: int = FUEL
) -> Conflicts:
    """Conflicts in which a rule named in ``about`` takes part (``None``: any). Names are unique, in any order."""
    ordered = sorted(rules, key=lambda r: r.name)
    judge = Judge(ordered, universe)
    wanted = [about is None or rule.name in about for rule in ordered]
    overlaps, empty, open_ = [], [], []
    for index, rule in enumerate(ordered):
        if not wanted[index]:
            continue
        try:
            spots = judge.spots(index, Fuel(fuel))
        except OutOfFuel:
            open_.append(rule)
            continue
        if not spots:
            empty.append(rule)
        seen = 0
        for spot in spots:
            if not spot.winners >> index & 1:
                continue
            for other in bits(spot.winners & ~seen & ~(1 << index)):
                # a pair that both take part is found from either
                if (other > index or not wanted[other]) and (layer := judge.witness(spot)) is not None:
                    seen |= 1 << other
                    pair = sorted((rule, ordered[other]), key=lambda r: r.name)
                    overlaps.append(Overlap(pair[0], pair[1], layer))
    return Conflicts(tuple(overlaps), tuple(empty), tuple(open_))
