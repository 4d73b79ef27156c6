"""Columns: the finite list of values that the analysis tries for each field.

Fields with few values have them all. Open ones (integers, dtypes, formats, block shapes) are cut where the table at
hand changes its mind: every value that some predicate names, the values beside each bound, and representatives of what
lies between, of which no predicate can tell one from another. Usual values come first: witnesses are made of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..args import STRATEGIES
from ..domains import Domain
from ..facts import KINDS, SIDES
from ..legal import NO_FORMAT, Universe

#: derived facts, and the fields that each of them looks at
DERIVED: dict[str, tuple[str, ...]] = {"same_group": ("weights.group_size", "inputs.group_size")}

_FORMATS = (
    *("pack-quantized", "int-quantized", "float-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized"),
    *("mxfp6-pack-quantized", "mxfp8-quantized", "dense", "naive-quantized", NO_FORMAT, None),
)
#: of each field of quant args, what real configs have, the usual first; enumerations are complete
_USUAL: dict[str, tuple[Any, ...]] = {
    "type": ("int", "float"),
    "num_bits": (4, 8, 2, 3, 5, 6, 7, 1, 16),
    "strategy": ("group", "channel", "token", "tensor", "block", "tensor_group", "attn_head"),
    "symmetric": (True, False),
    "dynamic": (False, True, "local"),
    "group_size": (None, 128, 32, 16, 64, -1, 0),
    "block_structure": (None, (128, 128)),
    "actorder": (None, "static", "weight", "group"),
    "scale_dtype": (None, "uint8", "float8_e4m3fn", "bfloat16", "float32"),
    "zp_dtype": ("int8", "float8_e4m3fn", "uint8", "bfloat16"),
}
#: a value that stands for all that nobody names, tried after the usual ones
_OTHER: dict[str, tuple[Any, ...]] = {
    "block_structure": ((1, 128), (64, 32), (3, 5)),
    "scale_dtype": ("float64", "complex64"),
    "zp_dtype": ("float64", "complex64"),
}
_INTEGERS = ("num_bits", "group_size")
assert set(_USUAL["strategy"]) == set(STRATEGIES)


def columns(domains: Mapping[str, Iterable[Domain]], universe: Universe) -> dict[str, tuple[Any, ...]]:
    """Values for each plain field, by what ``domains`` (of a table, by field) ask of it. ``ABSENT`` is left out."""
    made: dict[str, tuple[Any, ...]] = {}
    for name in ("kind", "format"):
        usual: tuple[Any, ...] = KINDS if name == "kind" else _FORMATS
        named = sorted(v for v in _named(domains.get(name, ())) if isinstance(v, str) and v not in usual)
        made[name] = usual if name == "kind" else (*usual, *(v for v in named if _readable(v)))
    for field, usual in _USUAL.items():
        # one list for all sides: derived facts compare them
        wanted = {d for side in SIDES for d in domains.get(f"{side}.{field}", ())}
        if field in _INTEGERS:
            values = _integers(usual, wanted)
        elif field in _OTHER:
            values = _with_named(field, usual, wanted)
        else:
            values = usual
        made.update({f"{side}.{field}": values for side in SIDES})
    return {name: universe.given.get(name, values) for name, values in made.items()}


def _named(domains: Iterable[Domain]) -> set[Any]:
    return {value for d in domains for value in (*(d.allowed or ()), *d.excluded)}


def _readable(name: str) -> bool:
    """Is a format's name spelled as the config reader spells names?"""
    return name == name.strip().lower().replace("_", "-")


def _with_named(field: str, usual: tuple[Any, ...], domains: Iterable[Domain]) -> tuple[Any, ...]:
    named = [v for v in _named(domains) if v not in usual and _plausible(field, v)]
    other = next((v for v in _OTHER[field] if v not in usual and v not in named), None)
    return (*usual, *sorted(named, key=str), *(() if other is None else (other,)))


def _plausible(field: str, value: Any) -> bool:
    if field != "block_structure":
        return isinstance(value, str)
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(v, int) and v > 0 for v in value)


def _integers(usual: Sequence[Any], domains: Iterable[Domain]) -> tuple[Any, ...]:
    """The usual values, the cuts, and two values of each interval between cuts (relations tell equal from unequal)."""
    cuts = {v for d in domains for v in d.cuts() if isinstance(v, int) and not isinstance(v, bool)}
    points = sorted(cuts | {v for v in usual if v is not None})
    between = []
    for low, high in zip([points[0] - 3, *points], [*points, points[-1] + 3], strict=True):
        between += [v for v in (low + 1, low + 2) if low < v < high]
    known = {v for v in usual if v is not None}
    return (*usual, *sorted(cuts - known), *(v for v in between if v not in cuts and v not in known))
