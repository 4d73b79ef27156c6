"""What an engine does with a layer, as data: its chain of ``if``s as an ordered list of cases.

The first case that holds decides. Cases that end in an error stand in the list too, because they keep the layer from
reaching the cases after them. A case's predicate is as loose as the engine's: what the engine does not look at is not
in it. What the engine then gets wrong stands beside it as faults, each with the layers that it concerns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..bounded import Bounded
from ..facts import LAYER_FIELDS
from ..predicates import Predicate, union
from ..values import ABSENT

#: What engines look at besides a layer's kind and args; see :mod:`.facts`. ``format`` is the engine's own reading here.
ENGINE_FIELDS = frozenset(
    {
        *("device", "capability", "runner", "fp4_gemm", "stored", "top_format", "target", "preset", "unknown_args"),
        *("unreadable_float", "sparse_targets", "sparse_24", "linear_entry", "linear_mxfp4", "strategy_given"),
        *("attention_group", "online_transforms", "block_rows"),
    }
)


class Seen(Predicate):
    """A predicate over what an engine sees: the fields of ``When`` and those of :data:`ENGINE_FIELDS`."""

    known = LAYER_FIELDS | ENGINE_FIELDS

    def holds(self, facts: Mapping[str, Any]) -> bool:
        """``test(facts)`` is yes. Engines know all that they look at, so nothing is unknown here."""
        return any(all(facts.get(name, ABSENT) in wanted for name, wanted in box.fields) for box in self.boxes)


@dataclass(frozen=True)
class Fault:
    """``does``: what the engine computes instead, as a phrase that goes on from "which"; ``when``: for which layers."""

    when: Predicate
    does: str

    def __init__(self, does: str, *when: Seen) -> None:
        object.__setattr__(self, "does", does)
        object.__setattr__(self, "when", union(when, Seen) if when else Seen())

    @property
    def predicate(self) -> Seen:
        assert isinstance(self.when, Seen)
        return self.when


@dataclass(frozen=True)
class EngineCase:
    """One ``if`` of an engine. ``name``: unique among the engine's cases for a kind of layer; ``when``: one or several.

    ``runs``: the engine's class, or ``None`` where it raises ``error``. ``same_as``: our schemes with the same numeric
    contract, where no fault holds.
    """

    name: str
    when: Predicate | Iterable[Seen]
    runs: str | None = None
    error: str = ""
    same_as: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "when", union(self.when, Seen))
        if (self.runs is None) != bool(self.error):
            raise TypeError(f"case {self.name} either runs a class or raises an error")

    @property
    def predicate(self) -> Seen:
        assert isinstance(self.when, Seen)
        return self.when


@dataclass(frozen=True)
class Engine:
    """An engine and its cases in order, by kind of layer. ``name``: as in ``equivalents``; ``label``: for people.

    ``settings``: settings of the engine that change which class runs, as facts; the first are the defaults. ``faults``:
    what goes wrong whichever class runs. ``devices``: those of which it is known what the engine does; another one is
    judged by the newest of ``capabilities`` that runs the layer.
    """

    name: str
    label: str
    chains: Mapping[str, tuple[EngineCase, ...]]
    faults: tuple[Fault, ...] = ()
    settings: tuple[Mapping[str, str], ...] = ({},)
    devices: tuple[str, ...] = ("cuda",)
    capabilities: tuple[int, ...] = (100, 90, 89, 80, 75)


class Chain:
    """The cases of one engine, compiled: the values of a field are looked up, not tested case by case."""

    def __init__(self, cases: Iterable[EngineCase]) -> None:
        self.cases = tuple(cases)
        self._boxes = [(case, box) for case in self.cases for box in case.predicate.boxes]
        self._tests: dict[str, list[tuple[int, Any]]] = {}
        for bit, (_, box) in enumerate(self._boxes):
            for name, wanted in box.fields:
                self._tests.setdefault(name, []).append((bit, wanted))
        self._masks: dict[tuple[str, type, Any], int] = Bounded(16384)

    def first(self, facts: Mapping[str, Any]) -> EngineCase | None:
        """The first case that holds; ``None`` for a kind of layer that the engine has no chain for."""
        mask = (1 << len(self._boxes)) - 1
        for name, tests in self._tests.items():
            value = facts.get(name, ABSENT)
            key = (name, type(value), value)
            known = self._masks.get(key)
            if known is None:
                known = self._masks[key] = self._mask(value, tests)
            mask &= known
            if not mask:
                break
        if not mask:
            return None
        return self._boxes[(mask & -mask).bit_length() - 1][0]

    def _mask(self, value: Any, tests: list[tuple[int, Any]]) -> int:
        mask = (1 << len(self._boxes)) - 1
        for bit, wanted in tests:
            if value not in wanted:
                mask &= ~(1 << bit)
        return mask
