"""The legal universe: every layer that a quantization config can describe, as boxes.

Legal is what the validation of compressed-tensors 0.20 admits (``quantization/quant_args.py``: ``QuantizationArgs``;
``quantization/quant_scheme.py``: ``QuantizationScheme``; for attention ``_validate_attention_scheme`` of
``lifecycle/initialize.py``), and the group activation ordering that releases before it wrote. Layers are taken as the
config reader hands them to rules: ``naive-quantized`` weights have become ``int-quantized`` or ``float-quantized``.

The universe is a union of :class:`Region`; in a region kind, format and the three sides are independent, and each side
is a sum: absent, or one of a few boxes of args, one for each way to state where scales are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from .args import _LARGEST, STRATEGIES
from .config_dtypes import DTYPE_NAMES
from .config_groups import SPARSE_FORMATS
from .config_models import MIXED_PRECISION, NAIVE
from .domains import Domain, between, domain, not_in
from .facts import ARGS_FIELDS, SIDES, LayerFacts
from .predicates import Box
from .values import ABSENT, PRESENT

__all__ = ["LEGAL", "NO_FORMAT", "Region", "Universe", "side_box", "witness"]

#: what the reader calls the format when a config has none
NO_FORMAT = "fakequant"
_NEVER = SPARSE_FORMATS | {MIXED_PRECISION, ABSENT}


#: the strategies of each side, those that most checkpoints have first: witnesses are made of them
_USUAL_FIRST = {
    "weights": ("group", "channel", "tensor", "block", "tensor_group", "token", "attn_head"),
    "inputs": ("token", "tensor", "group", "tensor_group", "attn_head", "channel", "block"),
    "outputs": ("tensor", "token", "group", "tensor_group", "channel", "attn_head", "block"),
}
assert all(set(strategies) == set(STRATEGIES) for strategies in _USUAL_FIRST.values())


@dataclass(frozen=True)
class Region:
    """Kinds, formats, and each side's alternatives: boxes over that side's fields. Anything goes with anything."""

    kinds: tuple[str, ...]
    formats: Domain
    weights: tuple[Box, ...]
    inputs: tuple[Box, ...]
    outputs: tuple[Box, ...]

    def boxes(self) -> Iterator[Box]:
        """The region as a union of disjoint boxes over all fields."""
        own = {"kind": Domain(frozenset(self.kinds)), "format": self.formats}
        for sides in product(self.weights, self.inputs, self.outputs):
            fields = {**own, **{name: wanted for box in sides for name, wanted in box.fields}}
            yield Box(tuple(sorted(fields.items())))


@dataclass(frozen=True)
class Universe:
    """A union of disjoint regions. ``values`` replaces the values that the analysis tries for a field by given ones."""

    regions: tuple[Region, ...]
    values: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def boxes(self) -> Iterator[Box]:
        """Disjoint boxes that together are the universe."""
        for region in self.regions:
            yield from region.boxes()

    def __contains__(self, facts: LayerFacts) -> bool:
        return any(_in_region(region, facts.flat) for region in self.regions)

    @cached_property
    def given(self) -> Mapping[str, tuple[Any, ...]]:
        return dict(self.values)

    def restricted(self, values: Mapping[str, tuple[Any, ...]]) -> Universe:
        """The part of this universe whose fields have these values only: a domain small enough to enumerate."""
        return Universe(self.regions, tuple(sorted({**self.given, **values}.items())))


def _in_region(region: Region, flat: Mapping[str, Any]) -> bool:
    if flat["kind"] not in region.kinds or flat["format"] not in region.formats:
        return False
    return all(any(box.test(flat).status == "yes" for box in getattr(region, side)) for side in SIDES)


def side_box(side: str, **fields: Any) -> Box:
    """One alternative of ``side``; without fields: absent."""
    if not fields:
        names = [side, *(f"{side}.{name}" for name in ARGS_FIELDS)]
        return Box(tuple(sorted((name, domain(ABSENT)) for name in names)))
    given = {side: domain(PRESENT), **{f"{side}.{name}": domain(value) for name, value in fields.items()}}
    return Box(tuple(sorted(given.items())))


def _args_boxes(side: str) -> tuple[Box, ...]:
    """What ``QuantizationArgs`` admits, a box for each strategy; ``zp_dtype`` is filled in where it was open."""
    order: set[Any] = {None, "weight", "static"} if side == "weights" else {None}
    strategies = [s for s in _USUAL_FIRST[side] if side != "inputs" or s not in ("channel", "block")]
    boxes = []
    for strategy in strategies:
        grouped = strategy in ("group", "tensor_group")
        boxes.append(
            side_box(
                side,
                type={"int", "float"},
                num_bits=between(-_LARGEST, _LARGEST),
                strategy=strategy,
                symmetric={True, False},
                dynamic=_dynamic(strategy),
                group_size=between(1, _LARGEST) if grouped else {None, -1, 0},
                block_structure=not_in({None, ABSENT}) if strategy == "block" else None,
                # written by releases before 0.20, which still load; only groups have an order
                actorder=order | {"group"} if grouped and side == "weights" else order,
                scale_dtype={None, *DTYPE_NAMES},
                zp_dtype=set(DTYPE_NAMES),
            )
        )
    return tuple(boxes)


def _dynamic(strategy: str) -> set[Any]:
    ways: dict[str, set[Any]] = {
        "token": {True},
        "tensor": {False, True},
        "group": {False, True},
        "tensor_group": {False, True, "local"},
    }
    return ways.get(strategy, {False})


def _regions() -> tuple[Region, ...]:
    matrices = ("linear", "moe", "lm_head", "embedding")
    absent = {side: (side_box(side),) for side in SIDES}
    some = {side: _args_boxes(side) for side in SIDES}
    either = {side: absent[side] + some[side] for side in SIDES}
    quantized = not_in(_NEVER | {None, NAIVE})
    return (
        Region(matrices, quantized, some["weights"], either["inputs"], either["outputs"]),
        # without weights a format says nothing, so the reader leaves any, and none at all, as it is
        Region(matrices, not_in(_NEVER), absent["weights"], either["inputs"], either["outputs"]),
        Region(("attention",), not_in(_NEVER), absent["weights"], either["inputs"], absent["outputs"]),
        Region(("kv_cache",), domain(None), absent["weights"], some["inputs"], absent["outputs"]),
    )


LEGAL = Universe(_regions())


def witness(box: Box) -> LayerFacts | None:
    """A legal layer inside ``box``, or ``None`` when there is none."""
    from .analysis import layer_in

    return layer_in(box)
