"""How near a rule comes to a layer that it does not accept: what would have to be another way, and how much that is.

The order is that of what it would take. A layer's kind cannot be changed; another type or number of bits of the weights
means to quantize the model again; another scale granularity too, but keeps more of it; inputs are quantized at run time
or can be calibrated anew; a format is a name that the tensors can contradict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .domains import Domain
from .facts import SIDES
from .predicates import Mismatch
from .values import ABSENT

#: in tenths, so that what is closer among equals can be told below one
_COSTS = {
    **{"kind": 500, "format": 70},
    **{"weights": 600, "weights.type": 300, "weights.num_bits": 80, "weights.strategy": 90, "weights.dynamic": 50},
    **{"weights.scale_dtype": 40, "weights.symmetric": 30, "weights.group_size": 30},
}
#: inputs and outputs
_RUN_TIME = {"": 120, "type": 100, "num_bits": 60, "strategy": 50, "dynamic": 40, "group_size": 20}
_OTHER = 30
#: a side without which nothing of the layer would be quantized
_ALL_OF_IT = 400
#: strategies that share their scales along the same axis
_ALIKE = frozenset({frozenset({"group", "tensor_group"}), frozenset({"tensor", "attn_head"})})
_ALIKE_COSTS = {"weights": 40, "inputs": 30, "outputs": 30}
#: these follow from the strategy: where it is another, they could not stay
_FOLLOWERS = {"group_size": 10, "block_structure": 10, "dynamic": 20, "actorder": 10}
_FARTHEST_BITS = 40


def cost(mismatches: Iterable[Mismatch], facts: Mapping[str, Any]) -> int:
    """What it would take to mend all of ``mismatches`` of a layer with ``facts``; nothing for none."""
    fields = {m.field: m for m in mismatches}
    left = [side for side in SIDES if facts[side] is not ABSENT and side not in fields]
    total = 0
    for field, mismatch in fields.items():
        side, _, name = field.partition(".")
        if field in ("inputs", "outputs") and mismatch.observed is not ABSENT and not left:
            total += _ALL_OF_IT
        elif name in _FOLLOWERS and f"{side}.strategy" in fields:
            total += _FOLLOWERS[name]
        else:
            total += _alone(mismatch)
    return total


def least(mismatch: Mismatch) -> int:
    """No less than this is added to :func:`cost` by ``mismatch``, whatever else does not match."""
    name = mismatch.field.partition(".")[2]
    if name and mismatch.observed is ABSENT:
        return 0  # the whole side is absent, and counts once
    return min(_FOLLOWERS.get(name, _ALL_OF_IT), _alone(mismatch))


def _alone(mismatch: Mismatch) -> int:
    side, _, name = mismatch.field.partition(".")
    if name == "strategy" and _alike(mismatch):
        return _ALIKE_COSTS[side]
    table, key = (_RUN_TIME, name) if side in ("inputs", "outputs") else (_COSTS, mismatch.field)
    return table.get(key, _OTHER) + (_bits_apart(mismatch) if name == "num_bits" else 0)


def _alike(mismatch: Mismatch) -> bool:
    return any(frozenset({mismatch.observed, value}) in _ALIKE for value in mismatch.required.allowed or ())


def _bits_apart(mismatch: Mismatch) -> int:
    """More bits than there are lose nothing, so they are nearer than as many less."""
    observed = mismatch.observed
    if not isinstance(observed, int):
        return 0
    apart = (
        wanted - observed if wanted >= observed else 4 * (observed - wanted) for wanted in _ends(mismatch.required)
    )
    return min([*apart, _FARTHEST_BITS])


def _ends(wanted: Domain) -> list[int]:
    values = [v for v in wanted.allowed or () if isinstance(v, int)]
    return values + [v for v in (wanted.low, wanted.high) if v is not None]
