"""Which part of the legal args has a scheme, and which a kernel on each device.

Counted are layers with the values of :data:`VALUES`, in the format that compressed-tensors 0.20 writes for them, by
what weights, inputs and outputs are. Layers that neither rules nor kernels tell apart are looked at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..args import QuantArgs
from ..domains import Domain, domain, not_in
from ..facts import ARGS_FIELDS, SIDES, LayerFacts
from ..kernels import Kernel
from ..legal import LEGAL, Region, Universe
from ..predicates import Box, Predicate
from ..registry import Registry
from ..values import ABSENT, PRESENT
from .choice import DEVICES, Choice
from .findings import facts_json
from .judge import Judge, Spot
from .matrix import of_box
from .paste import config_of
from .sweep import Fuel

#: the values that are counted; of what is open the ones that configs have, and one that stands for the rest
VALUES: Mapping[str, tuple[Any, ...]] = {
    "num_bits": (4, 8, 2, 3, 5, 6, 7, 1, 16),
    "group_size": (None, 128, 32, 16, 64, 48),
    "block_structure": (None, (128, 128), (64, 32)),
    "actorder": (None, "static", "group"),
    "scale_dtype": (None, "uint8", "float8_e4m3fn"),
    "zp_dtype": ("int8", "int16", "float8_e4m3fn"),
}
_FUEL = 50_000_000
#: type, bits, and the dtype of zero points that follows from them
_CODES: tuple[tuple[str, Any, str], ...] = (
    ("int", {1, 2, 3, 4, 5, 6, 7, 8}, "int8"),
    ("int", 16, "int16"),
    ("float", {4, 6, 8}, "float8_e4m3fn"),
)
BARE, CACHED = "unquantized", "keys and values"
_INPUTS = ("none", "int4", "int8", "other int", "fp4", "fp6", "fp8")
_WEIGHTS = (*(f"int{bits}" for bits in (1, 2, 3, 4, 5, 6, 7, 8, 16)), "fp4", "fp6", "fp8", BARE, CACHED)
#: fields that a kernel can test as they are; what it derives from others is kept apart by ``_DERIVED_FROM``
_AS_THEY_ARE = frozenset({"kind", *SIDES, *(f"{side}.{name}" for side in SIDES for name in ARGS_FIELDS)})
_DERIVED_FROM = ("weights.group_size", "weights.block_structure", "weights.actorder")


@dataclass
class Share:
    """A part of the legal args: how many layers, how many of them have a scheme, and on each device a kernel.

    ``fast``: layers with a kernel that is not marked as slow, by device; ``any``: with any kernel. ``without``: up to
    three layers that have no scheme.
    """

    weights: str
    inputs: str
    outputs: str
    layers: int = 0
    schemes: int = 0
    fast: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DEVICES, 0))
    any: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DEVICES, 0))
    without: list[LayerFacts] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            **{"weights": self.weights, "inputs": self.inputs, "outputs": self.outputs},
            **{"layers": self.layers, "schemes": self.schemes},
            "kernels": {device: {"fast": self.fast[device], "any": self.any[device]} for device in DEVICES},
            "without": [{"facts": facts_json(f), "quantization_config": config_of(f)} for f in self.without],
        }


def coverage(registry: Registry) -> list[Share]:
    """A share for each type and width of weights and inputs, without and with quantized outputs.

    Raises ``PluginError`` for a rule whose scheme cannot be imported.
    """
    rows = [(w, i, o) for w in _WEIGHTS for i, o in (*((i, "none") for i in _INPUTS), ("any", "quantized"))]
    rows = [row for row in rows if row[0] != CACHED or row[2] == "none" != row[1]]
    universe = Universe(tuple(_regions())).restricted(
        {f"{side}.{name}": values for side in SIDES for name, values in VALUES.items()}
    )
    rules = registry.rules.rules
    judge = Judge(rules, universe, [*(of_box(_row(*row)) for row in rows), *_cuts(registry.kernels)])
    choice = Choice(registry)
    shares = []
    for index, row in enumerate(rows):
        share = Share(*row)
        for spot in judge.spots(len(rules) + index, Fuel(_FUEL)):
            _add(share, spot, judge, choice)
        if share.layers:
            shares.append(share)
    return shares


def _add(share: Share, spot: Spot, judge: Judge, choice: Choice) -> None:
    number = spot.cell.count
    share.layers += number
    if spot.winners.bit_count() != 1:
        if len(share.without) < 3:
            share.without.append(spot.cell.facts)
        return
    share.schemes += number
    facts = spot.cell.facts
    if facts.weights is None and facts.inputs is None and facts.outputs is None:
        for device in DEVICES:  # left to torch
            share.any[device] += number
            share.fast[device] += number
        return
    rule = judge.rules[spot.winners.bit_length() - 1]
    for device, kernel in choice.of_rule(rule, facts)[1].items():
        share.any[device] += number if kernel is not None else 0
        share.fast[device] += number if kernel is not None and not kernel.slow else 0


# ---------------------------------------------------------------------------------------------------- what is counted


def written_format(weights: QuantArgs | None, inputs: QuantArgs | None) -> str:
    """The format in which compressed-tensors 0.20 stores such a group of linear layers.

    Source: ``infer_module_format`` (``compressors/format.py``), which asks the compressors in a fixed order.
    """
    if weights is None:
        return "dense"
    if weights.type == "int":
        return "int-quantized" if inputs is not None else "pack-quantized"
    kind = (weights.num_bits, weights.group_size)
    if kind in ((4, 32), (6, 32)):
        return f"mxfp{weights.num_bits}-pack-quantized"
    if kind == (8, 32) and weights.scale_dtype == "uint8":
        return "mxfp8-quantized"
    if kind == (4, 16):
        return "nvfp4-pack-quantized"
    return "float-quantized" if inputs is not None else "naive-quantized"


#: the same as boxes: what weights must be, and the format as rules see it (``naive-quantized`` floats are read as such)
_FLOAT_FORMATS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("mxfp4-pack-quantized", {"num_bits": 4, "group_size": 32}),
    ("mxfp6-pack-quantized", {"num_bits": 6, "group_size": 32}),
    ("mxfp8-quantized", {"num_bits": 8, "group_size": 32, "scale_dtype": "uint8"}),
    ("nvfp4-pack-quantized", {"num_bits": 4, "group_size": 16}),
    ("float-quantized", {"num_bits": 4, "group_size": not_in({16, 32})}),
    ("float-quantized", {"num_bits": {6, 8}, "group_size": not_in({32})}),
    ("float-quantized", {"num_bits": 8, "group_size": 32, "scale_dtype": not_in({"uint8"})}),
)


def _regions() -> Iterator[Region]:
    matrices, bare, attention, cache = LEGAL.regions
    absent, inputs = _split("inputs", matrices.inputs)
    outputs = sum(_split("outputs", matrices.outputs), ())
    integers = _narrowed("weights", matrices.weights, {"type": "int"})
    for given, name in ((absent, "pack-quantized"), (inputs, "int-quantized")):
        yield Region(matrices.kinds, domain(name), integers, given, outputs)
    for name, fields in _FLOAT_FORMATS:
        floats = _narrowed("weights", matrices.weights, {"type": "float", **fields})
        yield Region(matrices.kinds, domain(name), floats, absent + inputs, outputs)
    yield Region(bare.kinds, domain("dense"), bare.weights, absent + inputs, outputs)
    yield Region(attention.kinds, domain("dense"), attention.weights, inputs, attention.outputs)
    yield Region(cache.kinds, domain(None), cache.weights, inputs, cache.outputs)


def _split(side: str, boxes: Sequence[Box]) -> tuple[tuple[Box, ...], tuple[Box, ...]]:
    """The alternative that is absent, and the others, with the values that are counted."""
    absent = tuple(box for box in boxes if ABSENT in box.domains[side])
    return absent, _narrowed(side, [box for box in boxes if box not in absent], {})


def _narrowed(side: str, boxes: Sequence[Box], fields: Mapping[str, Any]) -> tuple[Box, ...]:
    wanted = Box(tuple(sorted((f"{side}.{name}", domain(value)) for name, value in fields.items())))
    narrow = []
    for kind, bits, zero_point in _CODES:
        codes = {"num_bits": domain(bits), "type": domain(kind), "zp_dtype": domain(zero_point)}
        meant = Box(tuple((f"{side}.{name}", value) for name, value in codes.items())) & wanted
        narrow += [both for box in boxes if not (both := box & meant).empty]
    return tuple(narrow)


def _row(weights: str, inputs: str, outputs: str) -> Box:
    """The layers that a row counts."""
    cached = weights == CACHED
    fields = {"kind": domain({"attention", "kv_cache"}) if cached else not_in({"attention", "kv_cache"})}
    fields |= _labelled("weights", "none" if weights in (BARE, CACHED) else weights)
    fields |= {} if inputs == "any" else _labelled("inputs", inputs)
    fields["outputs"] = domain(ABSENT if outputs == "none" else PRESENT)
    return Box(tuple(sorted(fields.items())))


def _labelled(side: str, label: str) -> dict[str, Domain]:
    if label == "none":
        return {side: domain(ABSENT)}
    if label == "other int":
        return {side: domain(PRESENT), f"{side}.type": domain("int"), f"{side}.num_bits": not_in({4, 8})}
    kind, bits = ("float", label[2:]) if label.startswith("fp") else ("int", label[3:])
    return {side: domain(PRESENT), f"{side}.type": domain(kind), f"{side}.num_bits": domain(int(bits))}


def _cuts(kernels: Sequence[Kernel]) -> Iterator[Predicate]:
    """Predicates that keep apart what a kernel tells apart."""
    boxes: dict[Box, None] = {}
    for kernel in kernels:
        for box in kernel.predicate.boxes:
            own = Box(tuple((name, wanted) for name, wanted in box.fields if name in _AS_THEY_ARE))
            boxes[own] = None
    for name in _DERIVED_FROM:
        for value in VALUES[name.partition(".")[2]][1:]:
            boxes[Box(((name, domain(value)),))] = None
    for box in boxes:
        if box.fields:
            yield of_box(box)
