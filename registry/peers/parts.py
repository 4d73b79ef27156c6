"""What several lists of cases are built of: args that engines ask for, and what they get wrong in more than one case.

Sections in comments, such as (a1), are those of the facts gathered from vLLM 0.32.0 and SGLang 0.5.23.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from ..domains import at_most, not_in
from ..predicates import Args, Box
from .case import EngineCase, Fault, Seen

#: "dynamic" is a flag or "local" to an engine that asks only whether it is true
TRUTHY = {True, "local"}
NVFP4: dict[str, Any] = {
    "type": "float",
    "num_bits": 4,
    "strategy": "tensor_group",
    "group_size": 16,
    "symmetric": True,
}
MXFP4: dict[str, Any] = {"type": "float", "num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": True}
MXFP8: dict[str, Any] = {**MXFP4, "num_bits": 8, "scale_dtype": "uint8"}
INT4: dict[str, Any] = {"type": "int", "num_bits": 4, "symmetric": True, "dynamic": False}
#: fp8 weights as both engines test them: the bits are not looked at
FLOAT_WEIGHTS: dict[str, Any] = {"type": "float", "symmetric": True, "dynamic": False}
TOKEN_8: dict[str, Any] = {"num_bits": 8, "strategy": "token", "dynamic": TRUTHY}
#: int8 weights as both engines test them: the type is not looked at
EIGHT_BITS: dict[str, Any] = {
    "num_bits": 8,
    "symmetric": True,
    "dynamic": False,
    "strategy": {"tensor", "channel"},
}
FLOAT_SCALES = {None, "bfloat16", "float16", "float32"}

OUTPUTS = Fault("ignores the output quantization", Seen(outputs=Args()))
DYNAMIC_WEIGHTS = Fault(
    "takes weights that would be quantized at run time for stored ones", Seen(weights=Args(dynamic=TRUTHY))
)
SCALES = Fault(
    "takes the weights' scales for plain numbers, whatever their dtype",
    Seen(weights=Args(scale_dtype=not_in(FLOAT_SCALES))),
)
INPUT_SCALES = Fault(
    "gives the inputs plain scales, whatever the scale dtype", Seen(inputs=Args(scale_dtype=not_in(FLOAT_SCALES)))
)
WEIGHT_BITS = Fault("reads the weights' codes as fp8, whatever their bits", Seen(weights=Args(num_bits=not_in({8}))))
INPUT_BITS = Fault("quantizes the inputs to fp8, whatever their bits", Seen(inputs=Args(num_bits=not_in({8}))))
NO_INPUT_ZEROS = Fault("quantizes the inputs without zero points", Seen(inputs=Args(symmetric=False)))
UNQUANTIZED_INPUTS = Fault("leaves the inputs unquantized", Seen(inputs=Args()))
FLOAT_AS_INT = Fault("reads the weights' float codes as integers", Seen(weights=Args(type="float")))
INT8_INPUTS = Fault("quantizes the inputs to int8, not fp8", Seen(inputs=Args(type="float")))
NV_SCALES = Fault(
    "reads the weights' scales as float8_e4m3fn, whatever their dtype",
    Seen(weights=Args(scale_dtype=not_in({None, "float8_e4m3fn"}))),
)
MX_SCALES = Fault(
    "reads the weights' scales as exponents, whatever their dtype",
    Seen(weights=Args(scale_dtype=not_in({None, "uint8"}))),
)


def read_as(*formats: str) -> Fault:
    """The tensors are read as ``formats`` store them, whatever the config says."""
    return Fault(
        f"reads the tensors as {' or '.join(formats)} stores them, whatever the format says",
        Seen(stored=not_in(set(formats))),
    )


def inputs_unquantized(why: str, *when: Seen) -> Fault:
    """Inputs are quantized by the config and not by the kernel that ``why`` tells of."""
    return Fault(f"leaves the inputs unquantized: {why}", *(both(w, Seen(inputs=Args())) for w in when))


def per_token() -> tuple[Fault, ...]:
    """Dynamic inputs get a scale per token where weights have scales per tensor or channel."""
    plain = Args(strategy={"tensor", "channel"})
    return (
        Fault(
            "scales the inputs per token, not per tensor",
            Seen(weights=plain, inputs=Args(strategy="tensor", dynamic=TRUTHY)),
        ),
        Fault(
            "scales the inputs per token, not per group",
            Seen(weights=plain, inputs=Args(strategy={"group", "tensor_group"})),
        ),
    )


def per_group_of_128(static: bool = True) -> tuple[Fault, ...]:
    """Inputs get a scale per group of 128 where weights have scales per block."""
    block = Args(strategy="block")
    faults = (
        Fault("scales the inputs per group of 128, not per token", Seen(weights=block, inputs=Args(strategy="token"))),
        Fault(
            "scales the inputs per group of 128, not per tensor",
            Seen(weights=block, inputs=Args(strategy="tensor", dynamic=TRUTHY)),
        ),
        Fault(
            "scales the inputs per group of 128, whatever their groups",
            Seen(weights=block, inputs=Args(strategy={"group", "tensor_group"}, group_size=not_in({128}))),
        ),
    )
    given = Fault(
        "scales the inputs per group of 128 at run time, though one static scale is given",
        Seen(weights=block, inputs=Args(dynamic=False)),
    )
    return (*faults, given) if static else faults


def both(one: Seen, other: Seen) -> Seen:
    """What both predicates hold for."""
    result = Seen()
    result.boxes = tuple(_both(a, b) for a in one.boxes for b in other.boxes)
    return result


def _both(one: Box, other: Box) -> Box:
    fields = dict(one.fields)
    for name, wanted in other.fields:
        fields[name] = fields[name] & wanted if name in fields else wanted
    return Box(tuple(sorted(fields.items(), key=itemgetter(0))))


def needs(minimum: int, *cases: EngineCase) -> tuple[EngineCase, ...]:
    """``get_min_capability`` against the device, after a class was chosen; a CPU passes."""
    return tuple(
        part
        for case in cases
        for part in (
            EngineCase(
                f"{case.name}, below sm{minimum}",
                both(case.predicate, Seen(capability=at_most(minimum - 1))),
                error="RuntimeError",
            ),
            case,
        )
    )
