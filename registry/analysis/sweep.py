"""The steps of a sweep over columns: states, sets of rows still alive, meet the classes of one column more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple


class OutOfFuel(Exception):
    """The question takes more steps than were given for it."""


class Fuel:
    """Steps left. A step is one set of rows meeting one class of values."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise OutOfFuel


class Value(NamedTuple):
    """Values of one column that the same boxes admit."""

    mask: int
    number: int
    #: the most usual one
    first: Any


#: ``(mask, what derived facts need to know)`` to ``(number of layers, the values of the first of them)``
Key = tuple[int, tuple[tuple[str, Any], ...]]
Path = tuple[Any, ...]
States = dict[Key, tuple[int, Path]]


def bits(mask: int) -> Iterator[int]:
    """The positions of the bits that are set, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def near(compiled: Iterable[tuple[str, list[Value]]], rows: int, keep: int) -> int:
    for _, classes in compiled:
        met = 0
        for value in classes:
            if value.mask & keep:
                met |= value.mask
        rows &= met
        keep &= met
        if not keep:
            return 0
    return rows


def fold(
    compiled: Iterable[tuple[str, list[Value]]], rows: int, keep: int, keyed: frozenset[str], fuel: Fuel
) -> States:
    """All columns of one alternative met in turn. ``keyed``: columns whose values stay apart."""
    path: Path = ()
    number = 1
    several: list[tuple[str, list[Value]]] = []
    for name, classes in compiled:
        met = classes if name in keyed else _projected(classes, rows)
        if name not in keyed and len(met) == 1 and met[0].mask == rows:
            # nothing is told apart: the same for every state, so said once, before there are many
            path, number = (path, name, met[0].first), number * met[0].number
        else:
            several.append((name, met))
    states: States = {(rows, ()): (number, path)}
    for name, classes in several:
        states = _meet(states, name, classes, keep, name in keyed, fuel)
        if not states:
            break
    return states


def _meet(states: States, name: str, classes: list[Value], keep: int, apart: bool, fuel: Fuel) -> States:
    """Every state meets every class of values of one more column."""
    fuel.spend(len(states) * len(classes))
    met: States = {}
    for (mask, keys), (count, path) in states.items():
        for value in classes:
            left = mask & value.mask
            if not left & keep:
                continue
            key = (left, (*keys, (name, value.first)) if apart else keys)
            known = met.get(key)
            if known is None:
                met[key] = (count * value.number, (path, name, value.first))
            else:
                met[key] = (known[0] + count * value.number, known[1])
    return met


def _projected(classes: list[Value], rows: int) -> list[Value]:
    """The classes as far as ``rows`` tell them apart."""
    merged: dict[int, Value] = {}
    for value in classes:
        mask = value.mask & rows
        known = merged.get(mask)
        merged[mask] = (
            Value(mask, value.number, value.first)
            if known is None
            else known._replace(number=known.number + value.number)
        )
    return list(merged.values())


def join(states: States, table: States, keep: int, fuel: Fuel) -> States:
    fuel.spend(len(states) * len(table))
    met: States = {}
    for (mask, keys), (count, path) in states.items():
        for (other, more), (number, values) in table.items():
            left = mask & other
            if not left & keep:
                continue
            key = (left, keys + more)
            known = met.get(key)
            if known is None:
                met[key] = (count * number, (path, values))
            else:
                met[key] = (known[0] + count * number, known[1])
    return met


def flat(path: Path) -> dict[str, Any]:
    """``(earlier, name, value)`` and ``(earlier, earlier)`` as a mapping."""
    values: dict[str, Any] = {}
    todo = [path]
    while todo:
        path = todo.pop()
        if len(path) == 3:
            values[path[1]] = path[2]
        todo += path[:1] if len(path) == 3 else path
    return values
