"""Domains: the set of values that a predicate admits for one field.

A domain is a finite set, an integer range, everything but a finite set, or a mix (a range with exclusions). Domains
can be intersected, tested, printed, and asked for a witness among candidate values.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from .values import ABSENT


@dataclass(frozen=True)
class Domain:
    """Values ``v`` with ``v in allowed`` (when given), ``low <= v <= high`` (integers only), ``v not in excluded``."""

    allowed: frozenset[Hashable] | None = None
    low: int | None = None
    high: int | None = None
    excluded: frozenset[Hashable] = frozenset()

    def __contains__(self, value: Any) -> bool:
        if self.allowed is not None and not _member(value, self.allowed):
            return False
        if _member(value, self.excluded):
            return False
        if self.low is None and self.high is None:
            return True
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def __and__(self, other: Domain) -> Domain:
        lows = [x for x in (self.low, other.low) if x is not None]
        highs = [x for x in (self.high, other.high) if x is not None]
        both = Domain(None, max(lows, default=None), min(highs, default=None), self.excluded | other.excluded)
        finite = [d.allowed for d in (self, other) if d.allowed is not None]
        if not finite:
            return both
        return Domain(frozenset(v for v in finite[0] if all(_member(v, f) for f in finite) and v in both))

    @property
    def empty(self) -> bool:
        """Is nothing admitted? Exact, because a range with exclusions is cut where the exclusions are."""
        if self.allowed is not None:
            return not any(v in self for v in self.allowed)
        if self.low is None or self.high is None:
            return False
        return self.high - self.low < len(self.excluded) + 1 and not any(
            v in self for v in range(self.low, self.high + 1)
        )

    def cuts(self) -> set[Hashable]:
        """Values at which this domain changes its mind: enough to tell it from any other at one of them."""
        values: set[Hashable] = set(self.allowed or ()) | set(self.excluded)
        for edge in (self.low, self.high):
            if edge is not None:
                values |= {edge - 1, edge, edge + 1}
        return values

    def __str__(self) -> str:
        if self.allowed is not None:
            return " | ".join(_text(v) for v in _ordered(self.allowed)) or "nothing"
        if self.low is not None and self.high is not None:
            text = f"{self.low}..{self.high}"
        elif self.low is not None:
            text = f">= {self.low}"
        elif self.high is not None:
            text = f"<= {self.high}"
        else:
            text = "anything"
        if self.excluded:
            text += " but " + ", ".join(_text(v) for v in _ordered(self.excluded))
        return text

    def to_json(self) -> Any:
        if self.allowed is not None:
            return [_json(v) for v in _ordered(self.allowed)]
        parts = {"min": self.low, "max": self.high, "not": [_json(v) for v in _ordered(self.excluded)] or None}
        return {key: value for key, value in parts.items() if value is not None}


def _member(value: Any, values: frozenset[Hashable]) -> bool:
    # True == 1 in Python: a rule that wants one bit must not admit the flag True, nor the other way round
    try:
        return value in values and any(v == value and type(v) is type(value) for v in values)
    except TypeError:
        return False


def _ordered(values: Iterable[Hashable]) -> list[Hashable]:
    return sorted(
        values, key=lambda v: (type(v).__name__ != "int", type(v).__name__, v if isinstance(v, int) else 0, str(v))
    )


def _text(value: Hashable) -> str:
    if value is ABSENT:
        return "absent"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value is None else str(value)


def _json(value: Hashable) -> Any:
    if value is ABSENT:
        return "absent"
    return list(value) if isinstance(value, tuple) else value


ANYTHING = Domain()


def domain(value: Any) -> Domain:
    """``value`` as a domain: a domain stays, a set or list is that set, a ``range`` is a range, else one value."""
    if isinstance(value, Domain):
        return value
    if isinstance(value, range):
        if value.step != 1 or not value:
            raise ValueError(f"a range of a predicate has step 1 and is not empty, not {value!r}")
        return Domain(low=value.start, high=value.stop - 1)
    if isinstance(value, (set, frozenset, list)):
        return Domain(frozenset(value))
    return Domain(frozenset({value}))


def at_least(low: int) -> Domain:
    """Integers from ``low`` on."""
    return Domain(low=low)


def at_most(high: int) -> Domain:
    """Integers up to and with ``high``."""
    return Domain(high=high)


def between(low: int, high: int) -> Domain:
    """Integers from ``low`` to ``high``, both included."""
    return Domain(low=low, high=high)


def not_in(values: Iterable[Hashable]) -> Domain:
    """Everything but ``values``."""
    return Domain(excluded=frozenset(values))
