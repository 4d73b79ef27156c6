"""SGLang 0.5.23 on linear layers: ``get_linear_scheme`` and ``_get_scheme_from_parts`` of compressed_tensors.py.

Sections (a0) and (a1) of the facts; what the classes compute from (c) and (d).
"""

from __future__ import annotations

from ..domains import at_least, at_most, not_in
from ..predicates import Args
from ..values import ABSENT as Absent
from .case import EngineCase, Fault, Seen
from .parts import (
    DYNAMIC_WEIGHTS,
    EIGHT_BITS,
    FLOAT_WEIGHTS,
    INPUT_BITS,
    INPUT_SCALES,
    INT8_INPUTS,
    NO_INPUT_ZEROS,
    NV_SCALES,
    NVFP4,
    OUTPUTS,
    SCALES,
    TOKEN_8,
    TRUTHY,
    UNQUANTIZED_INPUTS,
    WEIGHT_BITS,
    both,
    inputs_unquantized,
    needs,
    per_group_of_128,
    per_token,
    read_as,
)

#: formats whose inputs SGLang reads; under any other they are dropped without a word
READ = {"naive-quantized", "int-quantized", "float-quantized", "nvfp4-pack-quantized", "pack-quantized"}
PACK = "pack-quantized"
#: ``--fp4-gemm-backend``
MARLIN = "marlin"
FLOAT_INPUTS = (
    Args(type="float", dynamic=TRUTHY),
    Args(type="float", dynamic=False, symmetric=True, strategy="tensor"),
)


def no_inputs(**fields: object) -> list[Seen]:
    """``fields``, and no inputs, be it that they are dropped."""
    return [Seen(inputs=Absent, **fields), Seen(format=not_in(READ), **fields)]


def given(inputs: Args, **fields: object) -> Seen:
    """``fields``, and inputs that are read."""
    return Seen(format=READ, inputs=inputs, **fields)


#: what is refused before a layer is seen (a0), whatever its kind
PARSING = (
    EngineCase("a group spelled as a preset", Seen(preset=True), error="AttributeError"),
    EngineCase("unknown key in the args", Seen(unknown_args=True), error="ValidationError"),
    EngineCase("a group without weights", Seen(weights=Absent), error="ValidationError"),
    EngineCase("a float of other than 4 or 8 bits", Seen(unreadable_float=True), error="NotImplementedError"),
)
DROPPED = Fault(
    "drops the inputs' args under this format and leaves the inputs unquantized",
    Seen(format=not_in(READ), inputs=Args()),
)
#: Marlin's kernels exist for these groups only, and with zero points or a g_idx not for all bits: (d)
MARLIN_FAULTS = (
    Fault(
        "fails at the first forward: no kernel takes 8-bit weights with zero points",
        Seen(weights=Args(num_bits=8, symmetric=False)),
    ),
    Fault(
        "fails at the first forward: no kernel takes zero points with activation ordering",
        Seen(weights=Args(num_bits=4, symmetric=False, actorder="group")),
    ),
    Fault(
        "fails at the first forward: its kernels take groups of 32, 64 or 128",
        Seen(weights=Args(strategy="group", group_size=not_in({32, 64, 128}))),
    ),
)
NV_FAULTS = (read_as("nvfp4-pack-quantized"), NV_SCALES, DYNAMIC_WEIGHTS, OUTPUTS)
NV_INPUTS = (
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
FP8_FAULTS = (read_as("float-quantized"), SCALES, OUTPUTS)
FP8_INPUT_FAULTS = (INPUT_BITS, INPUT_SCALES, NO_INPUT_ZEROS, *per_token(), *per_group_of_128(static=False))
_STATIC_BLOCK = Fault(
    "fails after loading: with weights per block its inputs must be dynamic",
    Seen(weights=Args(strategy="block"), inputs=Args(dynamic=False)),
)
_BLOCK_ALONE = Fault("then fails: that class stores no blocks", Seen(weights=Args(strategy="block")))
#: int8 inputs are always scaled per token at run time; what is stored for them is computed with and left unused (c)
INT8_FAULTS = (
    read_as("int-quantized"),
    INT8_INPUTS,
    Fault(
        "rounds the weights' int8 codes to fp8 when it merges scales per tensor", Seen(weights=Args(strategy="tensor"))
    ),
    SCALES,
    INPUT_SCALES,
    OUTPUTS,
)
_RUN_TIME = Fault("ignores the static scale and zero point of the inputs and scales them per token at run time", Seen())


def _sparse() -> EngineCase:  # (a1) 1
    plain, eight = {"tensor", "channel"}, Args(num_bits=8, strategy={"tensor", "token"})
    return EngineCase(
        "fp8 or int8 beside 2:4 sparsity",
        given(eight, sparse_24=True, weights=Args(num_bits=8, strategy=plain)),
        error="ImportError",
    )


def _packed() -> tuple[EngineCase, ...]:  # (a1) 3
    weights = Args(type="int", dynamic=False, strategy={"channel", "group"})
    packed = [both(w, Seen(format=PACK, weights=Args(num_bits={4, 8}))) for w in no_inputs(weights=weights)]
    return (
        *needs(
            80,
            EngineCase(
                "packed int4 or int8",
                packed,
                "CompressedTensorsWNA16",
                same_as=("wNa16_int",),
                faults=(*MARLIN_FAULTS, SCALES, OUTPUTS),
            ),
        ),
        EngineCase("other integers per channel or group", no_inputs(weights=weights), error="ImportError"),
    )


def _nvfp4() -> tuple[EngineCase, ...]:  # (a1) 4 to 6
    below = inputs_unquantized("below sm100, and with Marlin, it takes the weights alone", Seen())
    alike = given(Args(**NVFP4), weights=Args(**NVFP4))
    return (
        *needs(
            80,
            EngineCase(
                "nvfp4 weights",
                Seen(format=READ, inputs=Absent, weights=Args(**NVFP4)),
                "CompressedTensorsW4A16Fp4",
                same_as=("w4a16_nvfp4",),
                faults=NV_FAULTS,
            ),
        ),
        EngineCase(
            "nvfp4 weights and inputs",
            both(alike, Seen(capability=at_least(100), fp4_gemm=not_in({MARLIN}))),
            "CompressedTensorsW4A4Fp4",
            same_as=("w4a4_nvfp4",),
            faults=(*NV_FAULTS, *NV_INPUTS),
        ),
        *needs(
            80,
            EngineCase(
                "nvfp4 weights and inputs, below sm100",
                alike,
                "CompressedTensorsW4A16Fp4",
                same_as=("w4a16_nvfp4",),
                faults=(*NV_FAULTS, below),
            ),
        ),
        EngineCase(
            "other fp4 weights with inputs",
            given(Args(), weights=Args(type="float", num_bits=4)),
            error="NotImplementedError",
        ),
    )


def _fp8() -> tuple[EngineCase, ...]:  # (a1) 7 and 8
    weights = Args(**FLOAT_WEIGHTS, strategy={"tensor", "channel", "block"})
    w8a8 = [given(inputs, weights=weights) for inputs in FLOAT_INPUTS]
    alone = Seen(format=READ, weights=Args(**FLOAT_WEIGHTS, strategy={"tensor", "channel"}))
    below = inputs_unquantized("below sm89 it takes fp8 weights alone", Seen(capability=at_most(88)))
    return (
        EngineCase(
            "fp8 weights and inputs",
            [both(w, Seen(capability=at_least(89))) for w in w8a8],
            "CompressedTensorsW8A8Fp8",
            same_as=("w8a8_fp8",),
            faults=(*FP8_FAULTS, *FP8_INPUT_FAULTS, _STATIC_BLOCK),
        ),
        *needs(
            80,
            EngineCase(
                "fp8 weights and inputs, below sm89",
                w8a8,
                "CompressedTensorsW8A16Fp8",
                same_as=("w8a16_fp8",),
                faults=(*FP8_FAULTS, below, _BLOCK_ALONE),
            ),
        ),
        *needs(
            80,
            EngineCase(
                "fp8 weights",
                alone,
                "CompressedTensorsW8A16Fp8",
                same_as=("w8a16_fp8",),
                faults=(*FP8_FAULTS, WEIGHT_BITS, UNQUANTIZED_INPUTS),
            ),
        ),
    )


def _int8() -> tuple[EngineCase, ...]:  # (a1) 9 to 11
    eight = Args(**EIGHT_BITS)
    static = given(Args(num_bits=8, strategy="tensor", dynamic=False), weights=eight)
    runs, same = "CompressedTensorsW8A8Int8", ("wNa8_int",)
    return (
        *needs(
            80,
            EngineCase(
                "8-bit weights, one static scale for 8-bit inputs",
                static,
                runs,
                same_as=same,
                faults=(_RUN_TIME, *INT8_FAULTS),
            ),
        ),
        *needs(
            80,
            EngineCase(
                "8-bit weights, 8-bit inputs per token",
                given(Args(**TOKEN_8), weights=eight),
                runs,
                same_as=same,
                faults=(*INT8_FAULTS, NO_INPUT_ZEROS),
            ),
        ),
        EngineCase("nothing matches", Seen(), error="NotImplementedError"),
    )


LINEAR = (_sparse(), *_packed(), *_nvfp4(), *_fp8(), *_int8())
