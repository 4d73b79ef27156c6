"""vLLM 0.32.0 on routed experts: ``get_moe_method``, with what its constructors and its choice of kernels refuse.

Section (a2) of the facts; kernels for integers from (e). The order is not that of linear layers, no minimal capability
is checked, and the format only for packed weights.
"""

from __future__ import annotations

from ..domains import Domain, at_most, not_in
from ..predicates import Args
from ..values import ABSENT as Absent
from .case import EngineCase, Seen
from .parts import (
    DYNAMIC_WEIGHTS,
    EIGHT_BITS,
    FLOAT_AS_INT,
    INPUT_BITS,
    INPUT_SCALES,
    INT4,
    MXFP4,
    MXFP8,
    NO_INPUT_ZEROS,
    NVFP4,
    OUTPUTS,
    SCALES,
    TOKEN_8,
    both,
    inputs_unquantized,
    per_group_of_128,
    read_as,
)
from .vllm_parts import (
    CPU,
    FLOAT_INPUTS,
    FP8_FAULTS,
    FP8_TOKEN,
    FP8_WEIGHTS,
    INT8_FAULTS,
    MX8_FAULTS,
    MX_FAULTS,
    MX_FP8_INPUTS,
    NV_FAULTS,
    NV_INPUTS,
    PACK,
    PER_TOKEN_MX,
    WIDE,
    mx_inputs,
)

_GPU = Domain(excluded=frozenset({Absent}))
_BELOW_90 = inputs_unquantized("its kernel there (Marlin) is weight-only", Seen(capability=at_most(89)))
_MARLIN = inputs_unquantized("it takes MarlinExperts everywhere, which are weight-only", Seen())
_BELOW_89 = inputs_unquantized("its kernels below sm89 are weight-only", Seen(capability=at_most(88)))
_FP8_INPUTS = (INPUT_BITS, INPUT_SCALES, NO_INPUT_ZEROS, *per_group_of_128())
_TENSOR = inputs_unquantized(
    "its kernels for one dynamic scale per tensor are weight-only",
    Seen(capability=_GPU, weights=Args(strategy="tensor"), inputs=Args(strategy="tensor", dynamic=True)),
)


def _mx() -> tuple[EngineCase, ...]:  # (a2) 1 to 3
    w4a8 = Seen(weights=Args(**MXFP4, dynamic=False), inputs=MX_FP8_INPUTS)
    return (
        EngineCase("mxfp4 weights, fp8 inputs, on a CPU", both(w4a8, Seen(**CPU)), error="NotImplementedError"),
        EngineCase(
            "mxfp4 weights, fp8 inputs",
            w4a8,
            "CompressedTensorsW4A8Mxfp4MoEMethod",
            same_as=("w4a8_mxfp4",),
            faults=(*MX_FAULTS, PER_TOKEN_MX, INPUT_SCALES, _BELOW_90),
        ),
        EngineCase(
            "mxfp4 weights",
            Seen(weights=Args(**MXFP4)),
            "CompressedTensorsW4A4Mxfp4MoEMethod",
            same_as=("w4a16_mxfp4",),
            faults=(*MX_FAULTS, DYNAMIC_WEIGHTS, _MARLIN),
        ),
        EngineCase(
            "mxfp8 weights",
            Seen(weights=Args(**MXFP8)),
            "CompressedTensorsW8A8Mxfp8MoEMethod",
            same_as=("w8a16_mxfp8", "w8a8_mxfp8"),
            faults=(*MX8_FAULTS, *mx_inputs(8, "mxfp8")),
        ),
    )


def _packed() -> tuple[EngineCase, ...]:  # (a2) 4, (e)
    only = Seen(inputs=Absent, weights=Args(dynamic=False, strategy={"channel", "group"}))

    def error(name: str, kind: str, **fields: object) -> EngineCase:
        return EngineCase(f"packed weights: {name}", both(only, Seen(**fields)), error=kind)

    channel, odd = {"strategy": "channel"}, {2, 3, 5, 6, 7}
    return (
        error("other than 2 to 8 bits", "ValueError", weights=Args(num_bits=WIDE)),
        error("another format", "ValueError", format=not_in({PACK})),
        error("on a CPU", "NotImplementedError", **CPU),
        error("8 bits with zero points", "NotImplementedError", weights=Args(num_bits=8, symmetric=False)),
        error("channels of 2, 3, 5, 6 or 7 bits", "AssertionError", weights=Args(num_bits=odd, **channel)),
        error("symmetric channels on sm90", "AssertionError", weights=Args(symmetric=True, **channel), capability=90),
        EngineCase(
            "packed weights",
            only,
            "CompressedTensorsWNA16MoEMethod",
            same_as=("wNa16_int",),
            faults=(FLOAT_AS_INT, SCALES, OUTPUTS),
        ),
    )


def _nvfp4() -> tuple[EngineCase, ...]:  # (a2) 5
    alone, alike = Seen(weights=Args(**NVFP4), inputs=Absent), Seen(weights=Args(**NVFP4), inputs=Args(**NVFP4))
    runs = "CompressedTensorsW4A4Nvfp4MoEMethod"
    return (
        EngineCase(
            "nvfp4 weights, on a CPU", [both(w, Seen(**CPU)) for w in (alone, alike)], error="NotImplementedError"
        ),
        EngineCase("nvfp4 weights", alone, runs, same_as=("w4a16_nvfp4",), faults=NV_FAULTS),
        EngineCase("nvfp4 weights and inputs", alike, runs, same_as=("w4a4_nvfp4",), faults=(*NV_FAULTS, *NV_INPUTS)),
        EngineCase("nvfp4 weights, other inputs", Seen(weights=Args(**NVFP4)), error="ValueError"),
    )


def _eight_bits() -> tuple[EngineCase, ...]:  # (a2) 6 and 7
    def fp8(strategy: str, inputs: str | None) -> list[Seen]:
        more = (
            Seen(weights=Args(strategy=strategy))
            if inputs is None
            else Seen(weights=Args(strategy=strategy), inputs=Args(strategy=inputs))
        )
        return [both(Seen(weights=FP8_WEIGHTS, inputs=given), more) for given in FLOAT_INPUTS]

    known = [*fp8("tensor", "tensor"), *fp8("channel", "token"), *fp8("block", None)]
    int8 = Seen(weights=Args(**EIGHT_BITS), inputs=Args(**TOKEN_8))
    return (
        EngineCase(
            "fp8 weights and inputs",
            known,
            "CompressedTensorsW8A8Fp8MoEMethod",
            same_as=("w8a8_fp8",),
            faults=(*FP8_FAULTS, *_FP8_INPUTS, _BELOW_89, _TENSOR),
        ),
        EngineCase(
            "fp8 weights and inputs that do not go together",
            [Seen(weights=FP8_WEIGHTS, inputs=given) for given in FLOAT_INPUTS],
            error="AssertionError",
        ),
        EngineCase("weight-only, nothing so far", Seen(inputs=Absent), error="AttributeError"),
        EngineCase(
            "8-bit weights per tensor, 8-bit inputs per token",
            both(int8, Seen(weights=Args(strategy="tensor"))),
            error="ValueError",
        ),
        EngineCase(
            "8-bit weights, 8-bit inputs per token, on a CPU", both(int8, Seen(**CPU)), error="NotImplementedError"
        ),
        EngineCase(
            "8-bit weights, 8-bit inputs per token",
            int8,
            "CompressedTensorsW8A8Int8MoEMethod",
            same_as=("wNa8_int",),
            faults=(*INT8_FAULTS, FLOAT_AS_INT, NO_INPUT_ZEROS),
        ),
    )


def _int4() -> tuple[EngineCase, ...]:  # (a2) 8 to 10
    w4a8 = Seen(weights=Args(**INT4, strategy="group"), inputs=FP8_TOKEN)
    return (
        EngineCase(
            "int4 groups of other than 128, fp8 inputs",
            both(w4a8, Seen(weights=Args(group_size=not_in({128})))),
            error="AssertionError",
        ),
        EngineCase("int4 groups, fp8 inputs, on a CPU", both(w4a8, Seen(**CPU)), error="NotImplementedError"),
        EngineCase(
            "int4 groups, fp8 inputs per token",
            w4a8,
            "CompressedTensorsW4A8Fp8MoEMethod",
            same_as=("w4a8_fp8",),
            faults=(read_as(PACK), SCALES, INPUT_SCALES, OUTPUTS),
        ),
        EngineCase(
            "int4 weights, int8 inputs",
            Seen(weights=Args(**INT4, strategy={"channel", "group"}), inputs=Args(type="int", **TOKEN_8)),
            error="NotImplementedError",
        ),
        EngineCase("nothing matches", Seen(), error="RuntimeError"),
    )


MOE = (*_mx(), *_packed(), *_nvfp4(), *_eight_bits(), *_int4())
