"""Predicates: boxes over facts, written as ``When`` (rules) and ``Needs`` (kernels).

A box constrains some fields, each by a :class:`~.domains.Domain`; a predicate is one box or a union of boxes. There are
no functions in a predicate, so that it can be intersected, counted, printed and checked without running anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypedDict, Unpack

from .domains import ANYTHING, Domain, _text, domain
from .facts import ARGS_FIELDS, KERNEL_FIELDS, LAYER_FIELDS, OPEN_PREFIXES, SIDES
from .values import ABSENT, PRESENT, UNKNOWN, Marker


@dataclass(frozen=True)
class Mismatch:
    """Why one field kept a candidate out."""

    field: str
    observed: Any
    required: Domain

    @property
    def shown(self) -> str:
        """What was observed, in words."""
        return "unknown" if self.observed is UNKNOWN else _text(self.observed)

    def __str__(self) -> str:
        return f"{self.field} is {in_words(self.field, self.shown)}, requires {in_words(self.field, self.required)}"

    def to_json(self) -> dict[str, Any]:
        return {"field": self.field, "observed": _text(self.observed), "required": str(self.required)}


def in_words(field: str, value: Any) -> str:
    """A value or a domain of a field for people: 306 is 3.6 where it is a version."""
    if not field.startswith("version."):
        return str(value)
    return re.sub(r"\d{3,}", lambda found: f"{int(found[0]) // 100}.{int(found[0]) % 100}", str(value))


@dataclass(frozen=True)
class Verdict:
    """``"yes"``, ``"no"`` (with the mismatches), or ``"if"`` (the conditions on facts that are unknown)."""

    status: str
    mismatches: tuple[Mismatch, ...] = ()
    conditions: tuple[Mismatch, ...] = ()


@dataclass(frozen=True)
class Box:
    """Fields and their domains, sorted by field; a field that is not named admits anything."""

    fields: tuple[tuple[str, Domain], ...]

    @cached_property
    def domains(self) -> dict[str, Domain]:
        return dict(self.fields)

    def test(self, facts: Mapping[str, Any]) -> Verdict:
        mismatches, conditions = [], []
        for name, wanted in self.fields:
            # an open fact (isa.*, package.*) that the environment does not list is absent there
            observed = facts.get(name, ABSENT)
            if observed is UNKNOWN:
                conditions.append(Mismatch(name, observed, wanted))
            elif observed not in wanted:
                mismatches.append(Mismatch(name, observed, wanted))
        if mismatches:
            return Verdict("no", tuple(without_followers(mismatches)))
        return Verdict("if", (), tuple(conditions)) if conditions else Verdict("yes")

    def __and__(self, other: Box) -> Box:
        names = sorted({n for n, _ in self.fields} | {n for n, _ in other.fields})
        return Box(tuple((n, self.domains.get(n, ANYTHING) & other.domains.get(n, ANYTHING)) for n in names))

    @property
    def empty(self) -> bool:
        return any(wanted.empty for _, wanted in self.fields)

    def __str__(self) -> str:
        return ", ".join(f"{name}: {wanted}" for name, wanted in self.fields) or "anything"

    def to_json(self) -> dict[str, Any]:
        return {name: wanted.to_json() for name, wanted in self.fields}


def without_followers(mismatches: list[Mismatch]) -> list[Mismatch]:
    """When a side is absent, all its fields mismatch too: only the side itself is worth reading."""
    sides = {m.field for m in mismatches if m.field in SIDES}
    return [m for m in mismatches if m.field.partition(".")[0] not in sides or m.field in sides]


class ArgsFields(TypedDict, total=False):
    """The names of ``ARGS_FIELDS``, for type checkers."""

    type: Any
    num_bits: Any
    strategy: Any
    symmetric: Any
    dynamic: Any
    group_size: Any
    block_structure: Any
    actorder: Any
    scale_dtype: Any
    zp_dtype: Any


class Args:
    """Constraints on one side's quant args, which must be there: ``Args(type="int", num_bits={4, 8})``.

    Fields: ``type``, ``num_bits``, ``strategy``, ``symmetric``, ``dynamic``, ``group_size``, ``block_structure``,
    ``actorder``, ``scale_dtype``, ``zp_dtype``. A value, a set of values, or a domain such as ``at_least(32)``.
    Raises ``TypeError`` for a field of another name.
    """

    def __init__(self, **fields: Unpack[ArgsFields]) -> None:
        unknown = sorted(set(fields) - set(ARGS_FIELDS))
        if unknown:
            raise TypeError(f"Args has no field {', '.join(unknown)}; it has {', '.join(ARGS_FIELDS)}")
        self.fields = {name: domain(value) for name, value in fields.items()}

    def __repr__(self) -> str:
        return f"Args({', '.join(f'{k}={v}' for k, v in self.fields.items())})"


def _side(side: str, value: Any) -> dict[str, Domain]:
    if value is ABSENT:
        return {side: domain(ABSENT)}
    if isinstance(value, Args):
        return {side: domain(PRESENT), **{f"{side}.{name}": wanted for name, wanted in value.fields.items()}}
    raise TypeError(f"{side} must be Absent or Args(...), not {value!r}")


class Predicate:
    """A union of boxes over a fixed set of fields. Use :class:`When` or :class:`Needs`."""

    known: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()

    def __init__(self, fields: Mapping[str, Any] | None = None, /, **keywords: Any) -> None:
        given = {**(fields or {}), **keywords}
        domains: dict[str, Domain] = {}
        for name, value in given.items():
            if name in SIDES:
                domains.update(_side(name, value))
            elif name in self.known or name.startswith(self.prefixes or ("\0",)):
                domains[name] = domain(value)
            else:
                raise TypeError(f"{type(self).__name__} has no field {name!r}; it has {', '.join(sorted(self.known))}")
        self.boxes: tuple[Box, ...] = (Box(tuple(sorted(domains.items(), key=lambda item: item[0]))),)

    def __or__(self, other: Predicate) -> Predicate:
        if type(self) is not type(other):
            return NotImplemented
        union = type(self)()
        union.boxes = self.boxes + other.boxes
        return union

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.boxes == getattr(other, "boxes", None)

    def __hash__(self) -> int:
        return hash(self.boxes)

    def test(self, facts: Mapping[str, Any]) -> Verdict:
        """Yes if any box says yes, else *if* with the fewest conditions, else no with the fewest mismatches."""
        best: Verdict | None = None
        for box in self.boxes:
            verdict = box.test(facts)
            if verdict.status == "yes":
                return verdict
            if best is None or _order(verdict) < _order(best):
                best = verdict
        assert best is not None
        return best

    def __str__(self) -> str:
        return " or ".join(str(box) for box in self.boxes)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"


def _order(verdict: Verdict) -> tuple[bool, int]:
    return (verdict.status == "no", len(verdict.mismatches) + len(verdict.conditions))


class WhenFields(TypedDict, total=False):
    """What ``When`` has names for; fields such as ``"weights.num_bits"`` are given in a mapping."""

    kind: Any
    format: Any
    same_group: Any
    weights: Args | Marker
    inputs: Args | Marker
    outputs: Args | Marker


class When(Predicate):
    """What a rule demands of a layer: ``kind``, ``format``, ``weights``, ``inputs``, ``outputs``, ``same_group``."""

    known = LAYER_FIELDS

    def __init__(self, fields: Mapping[str, Any] | None = None, /, **keywords: Unpack[WhenFields]) -> None:
        super().__init__(fields, **keywords)


class Needs(Predicate):
    """What a kernel demands of its task and of the environment. Fields such as ``"k%32"`` are given in a mapping."""

    known = KERNEL_FIELDS
    prefixes = OPEN_PREFIXES


def union(predicate: Predicate | Iterable[Predicate], kind: type[Predicate]) -> Predicate:
    """One predicate from one or several."""
    if isinstance(predicate, kind):
        return predicate
    if isinstance(predicate, Predicate) or not isinstance(predicate, Iterable):
        raise TypeError(f"expected {kind.__name__} or several of them, not {predicate!r}")
    parts = list(predicate)
    if not parts or not all(isinstance(part, kind) for part in parts):
        raise TypeError(f"expected {kind.__name__} or several of them, not {predicate!r}")
    result = parts[0]
    for part in parts[1:]:
        result = result | part
    return result
