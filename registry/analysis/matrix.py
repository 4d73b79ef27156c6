"""The matrix of a table: predicates as rows, fields as columns, and the cells that a row covers.

A *cell* is a set of legal layers that no predicate of the table tells apart, found as one set of boxes (a bit mask)
that match there. The columns are walked in order, and what differs in earlier columns but leaves the same boxes to be
looked at is looked at once: usefulness as in pattern matching (Maranget, *Warnings for pattern matching*, 2007),
specialized column by column and memoized by the rows that are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from ..args import QuantArgs
from ..domains import Domain
from ..facts import ARGS_FIELDS, LAYER_FIELDS, SIDES, LayerFacts
from ..legal import LEGAL, Region, Universe
from ..predicates import Box, Predicate, When
from ..values import ABSENT, PRESENT
from .columns import DERIVED, columns
from .sweep import Fuel, Path, States, Value, bits, flat, fold, join, near

#: the columns of a side, those that split most first
_ORDER = (
    *("strategy", "type", "num_bits", "dynamic", "symmetric", "group_size", "actorder", "scale_dtype"),
    *("block_structure", "zp_dtype"),
)
assert set(_ORDER) == set(ARGS_FIELDS)


@dataclass(frozen=True)
class Cell:
    """``count`` legal layers (of the values tried) that match exactly the boxes in ``mask``; ``facts``: one of them."""

    mask: int
    count: int
    path: Path

    @cached_property
    def values(self) -> dict[str, Any]:
        """The flat facts of that layer, but for derived ones."""
        return flat(self.path)

    @cached_property
    def facts(self) -> LayerFacts:
        return layer(self.values)


def layer(values: dict[str, Any]) -> LayerFacts:
    """The layer whose flat facts are ``values``. Raises pydantic's ``ValidationError`` for one that is not legal."""
    sides = {}
    for side in SIDES:
        given = values[side] is PRESENT
        sides[side] = _args(tuple(values[f"{side}.{f}"] for f in ARGS_FIELDS)) if given else None
    return LayerFacts(values["kind"], values["format"], **sides)


@lru_cache(maxsize=4096)
def _args(values: tuple[Any, ...]) -> QuantArgs:
    return QuantArgs(**dict(zip(ARGS_FIELDS, values, strict=True)))


def of_box(box: Box) -> When:
    """The predicate that has this one box."""
    when = When()
    when.boxes = (box,)
    return when


class Matrix:
    """All boxes of ``predicates``. ``of[i]``: the bits of the boxes of predicate ``i``."""

    def __init__(self, predicates: Sequence[Predicate], universe: Universe = LEGAL) -> None:
        self.universe = universe
        self.boxes: list[Box] = []
        self.of: list[int] = []
        for predicate in predicates:
            first = len(self.boxes)
            self.boxes += predicate.boxes
            self.of.append((1 << len(self.boxes)) - (1 << first))
        self.all = (1 << len(self.boxes)) - 1
        self._tests: dict[str, dict[Domain, int]] = {}
        for bit, box in enumerate(self.boxes):
            for name, wanted in box.fields:
                tests = self._tests.setdefault(name, {})
                tests[wanted] = tests.get(wanted, 0) | 1 << bit
        self._columns = columns({name: tests.keys() for name, tests in self._tests.items()}, universe)
        self._admitted: dict[tuple[str, type, Any], int] = {}
        #: by identity: the universe's boxes are few, and long to hash
        self._alternatives: dict[int, list[tuple[str, list[Value]]]] = {}
        self._regions = [self._compile(region) for region in universe.regions]
        #: by the values that derived facts look at, the boxes that admit those facts
        self._settled: dict[tuple[tuple[str, Any], ...], int] = {}
        #: boxes that look at each derived fact
        self._derived = {name: sum(self._tests[name].values()) for name in self._tests if name not in _PLAIN}

    def admitted(self, name: str, value: Any) -> int:
        """The boxes that admit ``value`` in the field ``name``."""
        key = (name, type(value), value)
        mask = self._admitted.get(key)
        if mask is None:
            mask = self.all
            for wanted, boxes in self._tests.get(name, {}).items():
                if value not in wanted:
                    mask &= ~boxes
            self._admitted[key] = mask
        return mask

    def cells(self, keep: int, fuel: Fuel, rows: int | None = None) -> list[Cell]:
        """The cells in which at least one box of ``keep`` matches, the most usual layers first.

        ``rows``: look at no other boxes than these. Raises ``OutOfFuel``.
        """
        rows = self.meeting(keep) & (self.all if rows is None else rows)
        keyed = self._keyed(rows)
        found: dict[int, Cell] = {}
        sides: dict[int, States] = {}
        for region in self._regions:
            for state, (count, path) in self._sweep(region, rows, keep, keyed, sides, fuel).items():
                known = found.get(state[0])
                if known is not None:
                    found[state[0]] = Cell(known.mask, known.count + count, known.path)
                else:
                    found[state[0]] = Cell(state[0], count, path)
        return list(found.values())

    def match(self, facts: LayerFacts) -> int:
        """The boxes that match a layer, by what the layer's own facts are; each yes is asked of the box itself."""
        mask = self.all
        for name in self._tests:
            mask &= self.admitted(name, facts.flat.get(name, ABSENT))
        return sum(1 << bit for bit in bits(mask) if self.boxes[bit].test(facts.flat).status == "yes")

    # ---------------------------------------------------------------------------------------------- compiled columns

    def _compile(self, region: Region) -> _Compiled:
        own = []
        for name, admitted in (("kind", region.kinds), ("format", region.formats)):
            own.append((name, self._classes(name, [v for v in self._columns[name] if v in admitted])))
        sides = []
        for side in SIDES:
            for box in getattr(region, side):
                if id(box) not in self._alternatives:
                    self._alternatives[id(box)] = self._alternative(side, box)
            sides.append([id(box) for box in getattr(region, side) if self._alternatives[id(box)]])
        return _Compiled(own, sides)

    def _alternative(self, side: str, box: Box) -> list[tuple[str, list[Value]]]:
        present = PRESENT in box.domains[side]
        compiled = [(side, self._classes(side, [PRESENT if present else ABSENT]))]
        for field in _ORDER:
            name = f"{side}.{field}"
            values = [v for v in self._columns[name] if v in box.domains[name]] if present else [ABSENT]
            if not values:
                return []
            compiled.append((name, self._classes(name, values)))
        return compiled

    def _classes(self, name: str, values: Iterable[Any]) -> list[Value]:
        # One class a value where a derived fact looks at it; otherwise values that the same boxes admit are one.
        apart = any(name in read for fact, read in DERIVED.items() if fact in self._tests)
        classes: dict[Any, Value] = {}
        for value in values:
            mask = self.admitted(name, value)
            key = (mask, value) if apart else mask
            known = classes.get(key)
            classes[key] = Value(mask, 1, value) if known is None else known._replace(number=known.number + 1)
        return list(classes.values())

    # ------------------------------------------------------------------------------------------------------- the sweep

    def meeting(self, keep: int) -> int:
        """The boxes that may match where one of ``keep`` does: those that share a value with it in each column.

        Of a single box exactly those that meet it in a legal layer, derived facts aside. 0 when there is none.
        """
        rows = 0
        shared: dict[int, int] = {}
        for region in self._regions:
            here = near(region.own, self.all, keep)
            for boxes in region.sides:
                side = 0
                for box in boxes:
                    if box not in shared:
                        shared[box] = near(self._alternatives[box], self.all, keep)
                    side |= shared[box]
                here &= side
            if here & keep:
                rows |= here
        return rows

    def _keyed(self, rows: int) -> frozenset[str]:
        """Fields whose values must be kept apart, because a derived fact that one of ``rows`` tests looks at them."""
        return frozenset(n for fact, boxes in self._derived.items() if boxes & rows for n in DERIVED.get(fact, ()))

    def _sweep(
        self, region: _Compiled, rows: int, keep: int, keyed: frozenset[str], sides: dict[int, States], fuel: Fuel
    ) -> States:
        states = fold(region.own, rows, keep, keyed, fuel)
        for boxes in region.sides:
            if not states:
                return states
            table: States = {}
            for box in boxes:
                if box not in sides:
                    sides[box] = fold(self._alternatives[box], rows, keep, keyed, fuel)
                for key, (count, path) in sides[box].items():
                    known = table.get(key)
                    table[key] = (count, path) if known is None else (known[0] + count, known[1])
            states = join(states, table, keep, fuel)
        return self._settle(states, keep) if keyed else states

    def _settle(self, states: States, keep: int) -> States:
        """Derived facts, which follow from the values kept apart, and the boxes that ask for other ones dropped."""
        settled: States = {}
        for (mask, keys), (count, path) in states.items():
            admitted = self._settled.get(keys)
            if admitted is None:
                derived = layer(flat(path)).flat
                admitted = self.all
                for fact in self._derived:
                    admitted &= self.admitted(fact, derived[fact])
                self._settled[keys] = admitted
            left = mask & admitted
            if left & keep:
                before = settled.get((left, ()))
                settled[left, ()] = (count, path) if before is None else (before[0] + count, before[1])
        return settled


_PLAIN = LAYER_FIELDS - frozenset(DERIVED)


class _Compiled(NamedTuple):
    own: list[tuple[str, list[Value]]]
    #: the alternatives of each side
    sides: list[list[int]]
