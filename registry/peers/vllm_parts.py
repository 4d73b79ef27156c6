"""What vLLM's cases for linear layers and for routed experts are built of. Kernels are from section (c)."""

from __future__ import annotations

from typing import Any

from ..domains import Domain, at_least, at_most, not_in
from ..predicates import Args
from ..values import ABSENT as Absent
from .case import Fault, Seen
from .parts import (
    DYNAMIC_WEIGHTS,
    FLOAT_WEIGHTS,
    INPUT_BITS,
    INPUT_SCALES,
    INT8_INPUTS,
    MX_SCALES,
    NO_INPUT_ZEROS,
    NV_SCALES,
    OUTPUTS,
    SCALES,
    TOKEN_8,
    TRUTHY,
    WEIGHT_BITS,
    inputs_unquantized,
    per_group_of_128,
    per_token,
    read_as,
)

#: formats whose inputs vLLM reads at all (``is_activation_quantization_format``)
ACT = {"naive-quantized", "int-quantized", "float-quantized", "nvfp4-pack-quantized"}
PACK = "pack-quantized"
INT_WEIGHTS: dict[str, Any] = {"type": "int", "dynamic": False, "strategy": {"channel", "group"}}
STATIC_INT8 = Args(type="int", num_bits=8, strategy="tensor", dynamic=False)
#: float inputs as ``_is_fp8_w8a8`` takes them: any dynamic ones, or a symmetric static scale per tensor
FLOAT_INPUTS = (
    Args(type="float", dynamic=TRUTHY),
    Args(type="float", dynamic=False, symmetric=True, strategy="tensor"),
)
FP8_TOKEN = Args(type="float", symmetric=True, **TOKEN_8)
MX_FP8_INPUTS = Args(type="float", num_bits=8, symmetric=True, dynamic=TRUTHY, strategy={"token", "group"})
FP8_WEIGHTS = Args(**FLOAT_WEIGHTS, strategy={"tensor", "channel", "block"})
WIDE = not_in(set(range(2, 9)))
CPU: dict[str, Any] = {"device": "cpu"}
#: a CPU has no capability, and passes every test of it
FP8_MATH: tuple[dict[str, Any], ...] = ({"capability": Absent}, {"capability": at_least(89)})

#: Marlin, Machete, Triton and the CPU's kernel ignore what WNA8Int and WNA4Int tell of the inputs; Humming, which comes
#: after them (before Marlin on sm90), does not. A channel's group size is -1 or absent.
_CHANNEL = {"strategy": "channel"}
_NOT_HUMMING = (
    Seen(**CPU, weights=Args(num_bits=4)),
    Seen(capability=Domain(excluded=frozenset({90, Absent})), weights=Args(num_bits=4, **_CHANNEL)),
    Seen(capability=Domain(excluded=frozenset({90, Absent})), weights=Args(num_bits=8, symmetric=True, **_CHANNEL)),
    Seen(
        capability=Domain(excluded=frozenset({90, Absent})),
        weights=Args(num_bits=4, strategy="group", group_size={32, 64, 128, 256, 1024}),
    ),
    Seen(
        capability=Domain(excluded=frozenset({90, Absent})),
        weights=Args(num_bits=8, symmetric=True, strategy="group", group_size={32, 64, 128}),
    ),
    Seen(capability=90, weights=Args(num_bits={4, 8}, **_CHANNEL)),
    Seen(capability=90, weights=Args(num_bits={4, 8}, strategy="group", group_size={64, 128})),
)
WEIGHT_ONLY_KERNELS = inputs_unquantized("the kernel that it takes there is weight-only", *_NOT_HUMMING)

NV_FAULTS = (read_as("nvfp4-pack-quantized"), NV_SCALES, DYNAMIC_WEIGHTS, OUTPUTS)
NV_INPUTS = (
    inputs_unquantized("its kernels below sm100 are weight-only", Seen(capability=at_most(99))),
    Fault(
        "scales the groups of the inputs at run time, though the config calls them static",
        Seen(inputs=Args(dynamic=False)),
    ),
    Fault(
        "takes a stored global scale for the inputs, though the config makes all their scales at run time",
        Seen(inputs=Args(dynamic=True)),
    ),
    Fault(
        "gives the inputs scales in float8_e4m3fn, whatever their dtype",
        Seen(inputs=Args(scale_dtype=not_in({None, "float8_e4m3fn"}))),
    ),
)
MX_FAULTS = (read_as("mxfp4-pack-quantized"), MX_SCALES, OUTPUTS)
PER_TOKEN_MX = Fault("scales the inputs per token, not per group", Seen(inputs=Args(strategy="group")))
_MX4_INPUTS = {"type": "float", "num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": True}


def _other_inputs(bits: int, name: str) -> Fault:
    """Inputs that are neither absent nor microscaled: the class does not look at them."""
    said = f"does not look at the inputs' args: quantizes them to {name}, or not at all, as its kernel does"
    args: dict[str, Any] = {**_MX4_INPUTS, "num_bits": bits}
    others = [Seen(inputs=Args(**{field: not_in({value})})) for field, value in args.items()]
    more = [Seen(inputs=Args(dynamic=False)), Seen(inputs=Args(scale_dtype=not_in({None, "uint8"})))]
    return Fault(said, *others, *more)


def mx_inputs(bits: int, name: str) -> tuple[Fault, ...]:
    """The faults of a class that quantizes inputs to microscaled floats where its kernel can, and only there."""
    return (
        Fault(
            f"quantizes the inputs to {name} (its kernel on sm100 does)", Seen(inputs=Absent, capability=at_least(100))
        ),
        inputs_unquantized("its kernels below sm100 are weight-only", Seen(capability=at_most(99))),
        _other_inputs(bits, name),
    )


MX8_FAULTS = (read_as("mxfp8-quantized", "float-quantized"), DYNAMIC_WEIGHTS, OUTPUTS)
FP8_FAULTS = (read_as("float-quantized"), WEIGHT_BITS, SCALES, OUTPUTS)
FP8_INPUT_FAULTS = (INPUT_BITS, INPUT_SCALES, NO_INPUT_ZEROS, *per_token(), *per_group_of_128(static=False))
BLOCK_ROWS = Fault(
    "takes the rows of a block for the size of the inputs' groups", Seen(block_rows=not_in({128, Absent}))
)
BELOW_90 = inputs_unquantized(
    "its kernel for blocks there (Marlin) is weight-only", Seen(capability=89, weights=Args(strategy="block"))
)
INT8_FAULTS = (read_as("int-quantized"), INT8_INPUTS, SCALES, INPUT_SCALES, OUTPUTS)
