"""The modules of a checkpoint, gathered into families: alike in everything but name.

A large checkpoint has tens of thousands of modules of a few dozen kinds. What a plan decides it decides for a family.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, NamedTuple

from .modules import (
    PROJECTIONS,
    Module,
    attention_class,
    classify,
    given_modules,
    has_conv1d,
    is_cached_attention,
)
from .stored_tensors import Header, TensorKind
from .tensor_table import LayerTensors, TensorFact, TensorTable

#: the one tensor whose values a plan goes by: it gives the K of a packed weight
_SHAPE = "weight_shape"
_TAIL = ".weight_shape"
_SHAPE_BYTES = 16
#: to which numbers in names are padded for sorting
_DIGITS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """What modules alike share; see :class:`.modules.Module`. ``tensors``: what the headers say, by local name."""

    kind: str | None
    classes: tuple[str, ...]
    inferred: str = ""
    tensors: Mapping[str, TensorKind] = field(default_factory=dict)


class Modules:
    """``families``: of each module, by its name, in natural order. ``table``: where their tensors are."""

    def __init__(self, families: dict[str, Family], table: TensorTable) -> None:
        self.families = families
        self.table = table
        self._known: dict[Any, Family] = {}

    def module(self, name: str) -> Module:
        """One of them by itself."""
        family = self.families[name]
        layer = self.tensors(name)
        facts = {local: TensorFact(layer, local) for local in family.tensors}
        return Module(name, family.kind, family.classes, family.inferred, facts)

    def tensors(self, name: str) -> LayerTensors:
        return LayerTensors(self.table, name, self.families[name].tensors)

    def change(self, name: str, **changes: Any) -> None:
        """Move a module to the family that differs from its own in ``changes``."""
        family = replace(self.families[name], **changes)
        key = (family.kind, family.classes, family.inferred, tuple(family.tensors.items()))
        self.families[name] = self._known.setdefault(key, family)

    def add(self, module: Module) -> None:
        """Add a module that stores nothing, after all others."""
        self.families[module.name] = Family(module.kind, module.classes, module.inferred)

    def override(self, given: Mapping[str, str | Sequence[str]]) -> list[str]:
        """Apply ``modules=`` to what the tensors told; returns the names that the checkpoint does not have."""
        unknown = []
        for name, module in given_modules(given).items():
            if name in self.families:
                self.change(name, kind=module.kind, classes=module.classes, inferred=module.inferred)
            else:
                unknown.append(name)
        return unknown


def without_tensors(modules: Iterable[Module]) -> Modules:
    """Modules that are known by name only, in natural order: a plan does not depend on the order they are given in."""
    known: dict[Any, Family] = {}
    families = {}
    for module in sorted(modules, key=lambda module: _natural(module.name)):
        key = (module.kind, module.classes, module.inferred)
        families[module.name] = known.setdefault(key, Family(*key))
    return Modules(families, TensorTable())


def find_modules(table: TensorTable, config: Mapping[str, Any], matrices: frozenset[str] = frozenset()) -> Modules:
    """Every module that owns a tensor, and the attention modules above their projections, in natural order of names.

    ``config``: the whole config.json. ``matrices``: see :func:`.modules.classify`.

    Raises ``UnreadableCheckpointError`` when a file has become shorter than its header says.
    """
    conv1d, attention = has_conv1d(config), (attention_class(config),)
    values = _shape_values(table.headers)
    parents: dict[str, _Parent] = {}
    known: dict[Any, Family] = {}
    rows: list[tuple[str, str, Family]] = []
    caches: dict[str, str] = {}
    for name, stored in table.modules.items():
        parent, dot, last = name.rpartition(".")
        above = parents.get(parent) or _parent(parent, parents)
        # all that the family depends on; what is stored is known by its object, which the table keeps
        sign = (id(stored), values.get(name), last, above.sort)
        family = known.get(sign)
        if family is None:
            kinds = _with_value(stored.kinds, values.get(name))
            family = known[sign] = Family(*classify(name, kinds, conv1d, attention, matrices), kinds)
        part = last.zfill(_DIGITS) if last.isdigit() else last
        rows.append((f"{above.key}.{part}" if dot else part, name, family))
        if last in PROJECTIONS:
            caches.setdefault(parent, last)
    for parent, projection in caches.items():
        if is_cached_attention(parent):
            _make_attention(rows, parent, table, attention, f"attention, from its {projection}")
    rows.sort(key=itemgetter(0))
    return Modules({name: family for _, name, family in rows}, table)


def _make_attention(
    rows: list[tuple[str, str, Family]], name: str, table: TensorTable, classes: tuple[str, ...], inferred: str
) -> None:
    """Of the module above its projections, which may have tensors of its own."""
    if name not in table.modules:
        rows.append((_natural(name), name, Family("attention", classes, inferred)))
        return
    place = next(i for i, row in enumerate(rows) if row[1] == name)
    key, _, family = rows[place]
    if family.kind is None:
        rows[place] = (key, name, Family("attention", classes, inferred, family.tensors))


class _Parent(NamedTuple):
    """What the names right below a module have in common.

    ``key``: its own in natural order. ``sort``: 1 at the top, where heads are, 2 in a routed expert, else 0.
    """

    key: str
    sort: int


def _parent(name: str, known: dict[str, _Parent]) -> _Parent:
    upper, dot, last = name.rpartition(".")
    above = known.get(upper) or _parent(upper, known) if dot else _Parent("", 0)
    expert = above.sort == 2 or (last.isdecimal() and upper.rpartition(".")[2] == "experts")
    key = f"{above.key}.{_padded(last)}" if dot else _padded(last)
    known[name] = place = _Parent(key, 2 if expert else int(name in ("", "model")))
    return place


def _natural(name: str) -> str:
    return ".".join(map(_padded, name.split(".")))


def _padded(part: str) -> str:
    return part.zfill(_DIGITS) if part.isdigit() else part


def _with_value(kinds: Mapping[str, TensorKind], value: bytes | None) -> Mapping[str, TensorKind]:
    return kinds if value is None else {**kinds, _SHAPE: replace(kinds[_SHAPE], value=value)}


def _shape_values(headers: Iterable[Header]) -> dict[str, bytes]:
    """The bytes of ``weight_shape`` by module: layers of equal headers may differ in the K it gives."""
    values: dict[str, bytes] = {}
    for header in headers:
        shapes = {kind for kind in set(header.kinds) if kind.tail == _TAIL and kind.nbytes <= _SHAPE_BYTES}
        if shapes and header.local:
            rows = [row for row, kind in enumerate(header.kinds) if kind in shapes]
            values.update(zip(map(header.modules.__getitem__, rows), header.read_rows(rows), strict=True))
    return values
