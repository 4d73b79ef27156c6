"""vLLM 0.32.0 on linear layers: ``get_scheme`` of compressed_tensors.py, with what its constructors refuse.

Section (a0) and (a1) of the facts; kernels from (c).
"""

from __future__ import annotations

from typing import Any

from ..domains import at_most, not_in
from ..predicates import Args
from ..values import ABSENT as Absent
from .case import EngineCase, Fault, Seen
from .parts import (
    DYNAMIC_WEIGHTS,
    EIGHT_BITS,
    FLOAT_AS_INT,
    INPUT_SCALES,
    INT4,
    MXFP4,
    MXFP8,
    NVFP4,
    OUTPUTS,
    SCALES,
    TOKEN_8,
    TRUTHY,
    UNQUANTIZED_INPUTS,
    both,
    inputs_unquantized,
    needs,
    read_as,
)
from .vllm_parts import (
    ACT,
    BELOW_90,
    BLOCK_ROWS,
    CPU,
    FLOAT_INPUTS,
    FP8_FAULTS,
    FP8_INPUT_FAULTS,
    FP8_MATH,
    FP8_TOKEN,
    FP8_WEIGHTS,
    INT8_FAULTS,
    INT_WEIGHTS,
    MX8_FAULTS,
    MX_FAULTS,
    MX_FP8_INPUTS,
    NV_FAULTS,
    NV_INPUTS,
    PACK,
    PER_TOKEN_MX,
    STATIC_INT8,
    WEIGHT_ONLY_KERNELS,
    WIDE,
    mx_inputs,
)

#: what is refused before a layer is seen (a0), whatever its kind
PARSING = (
    EngineCase("a group spelled as a preset", Seen(preset=True), error="AttributeError"),
    EngineCase("sparsity_config with targets", Seen(sparse_targets=True), error="DeprecationWarning"),
    EngineCase("unknown key in the args", Seen(unknown_args=True), error="ValidationError"),
    EngineCase("a group without weights", Seen(weights=Absent), error="ValidationError"),
    EngineCase("a float of other than 4 or 8 bits", Seen(unreadable_float=True), error="NotImplementedError"),
    EngineCase("activation ordering by group", Seen(weights=Args(actorder="group")), error="ValueError"),
    EngineCase(
        "weight-only integers in a format with inputs",
        Seen(format=ACT, inputs=Absent, weights=Args(type="int")),
        error="AssertionError",
    ),
)


def _with(predicate: Seen, **fields: Any) -> Seen:
    return both(predicate, Seen(**fields))


def _not_on_cpu(case: EngineCase, error: str = "ValueError") -> tuple[EngineCase, EngineCase]:
    """These choose their kernel in the constructor, and a CPU has none."""
    return EngineCase(f"{case.name}, on a CPU", _with(case.predicate, **CPU), error=error), case


def _nvfp4() -> tuple[EngineCase, ...]:  # (a1) 1
    return (
        *_not_on_cpu(
            EngineCase(
                "nvfp4 weights",
                Seen(weights=Args(**NVFP4), inputs=Absent),
                "CompressedTensorsW4A4Fp4",
                same_as=("w4a16_nvfp4",),
                faults=NV_FAULTS,
            )
        ),
        *_not_on_cpu(
            EngineCase(
                "nvfp4 weights and inputs",
                Seen(weights=Args(**NVFP4), inputs=Args(**NVFP4)),
                "CompressedTensorsW4A4Fp4",
                same_as=("w4a4_nvfp4",),
                faults=(*NV_FAULTS, *NV_INPUTS),
            )
        ),
        EngineCase("nvfp4 weights, other inputs", Seen(weights=Args(**NVFP4)), error="ValueError"),
    )


def _mx() -> tuple[EngineCase, ...]:  # (a1) 2 to 4
    w4a8 = EngineCase(
        "mxfp4 weights, fp8 inputs",
        Seen(weights=Args(**MXFP4, dynamic=False), inputs=MX_FP8_INPUTS),
        "CompressedTensorsW4A8Mxfp4",
        same_as=("w4a8_mxfp4",),
        faults=(*MX_FAULTS, PER_TOKEN_MX, INPUT_SCALES),
    )
    w4a4 = EngineCase(
        "mxfp4 weights",
        Seen(weights=Args(**MXFP4)),
        "CompressedTensorsW4A4Mxfp4",
        same_as=("w4a16_mxfp4", "w4a4_mxfp4"),
        faults=(*MX_FAULTS, DYNAMIC_WEIGHTS, *mx_inputs(4, "mxfp4")),
    )
    w8a8 = EngineCase(
        "mxfp8 weights",
        Seen(weights=Args(**MXFP8)),
        "CompressedTensorsW8A8Mxfp8",
        same_as=("w8a16_mxfp8", "w8a8_mxfp8"),
        faults=(*MX8_FAULTS, *mx_inputs(8, "mxfp8")),
    )
    return (
        *(part for case in (w4a8, w4a4) for part in (_not_on_cpu(case)[0], *needs(80, case))),
        *needs(75, w8a8),
    )


def _int_inputs() -> tuple[EngineCase, ...]:  # (a1) 5 to 8
    w4a8 = Seen(weights=Args(**INT4, strategy="group"), inputs=FP8_TOKEN, capability=90)
    w8o8 = Seen(format={PACK, "int-quantized"}, weights=Args(**INT_WEIGHTS), inputs=STATIC_INT8, outputs=STATIC_INT8)
    no_zeros = tuple(
        Fault(f"loads no zero points of the {side}", Seen(**{side: Args(symmetric=False)}))
        for side in ("weights", "inputs", "outputs")
    )
    cases = [
        EngineCase(
            "int4 groups of other than 128, fp8 inputs",
            _with(w4a8, **{"weights": Args(group_size=not_in({128}))}),
            error="ValueError",
        ),
        EngineCase(
            "int4 groups, fp8 inputs per token",
            w4a8,
            "CompressedTensorsW4A8Fp8",
            same_as=("w4a8_fp8",),
            faults=(read_as(PACK), SCALES, INPUT_SCALES, OUTPUTS),
        ),
        EngineCase(
            "int8 inputs and outputs, other than 2, 4 or 8 bits",
            _with(w8o8, weights=Args(num_bits=not_in({2, 4, 8}))),
            error="ValueError",
        ),
        EngineCase(
            "int8 inputs and outputs",
            w8o8,
            "CompressedTensorsWNA8O8Int",
            same_as=("wNa8o8_int",),
            faults=(*no_zeros, SCALES, INPUT_SCALES),
        ),
    ]
    for bits in (8, 4):
        inputs = Args(type="int", num_bits=bits, symmetric=True, dynamic=TRUTHY, strategy={"token", "group"})
        when = Seen(format=PACK, weights=Args(**INT_WEIGHTS), inputs=inputs)
        cases += [
            EngineCase(
                f"packed integers of other than 2 to 8 bits, int{bits} inputs",
                _with(when, weights=Args(num_bits=WIDE)),
                error="ValueError",
            ),
            EngineCase(
                f"packed integers, int{bits} inputs",
                when,
                f"CompressedTensorsWNA{bits}Int",
                same_as=(f"wNa{bits}_int",),
                faults=(WEIGHT_ONLY_KERNELS, SCALES, INPUT_SCALES, OUTPUTS),
            ),
        ]
    only = Seen(format=PACK, inputs=Absent, weights=Args(dynamic=False, strategy={"channel", "group"}))
    cases += [
        EngineCase(
            "packed weights of other than 2 to 8 bits", _with(only, weights=Args(num_bits=WIDE)), error="ValueError"
        ),
        EngineCase(
            "packed weights",
            only,
            "CompressedTensorsWNA16",
            same_as=("wNa16_int",),
            faults=(FLOAT_AS_INT, SCALES, OUTPUTS),
        ),
    ]
    return _minimal(cases)


def _act_formats() -> tuple[EngineCase, ...]:  # (a1) 9 to 13
    def fp8(*inputs: Args, **fields: Any) -> list[Seen]:
        return [Seen(format=ACT, weights=FP8_WEIGHTS, inputs=given, **fields) for given in inputs]

    below = inputs_unquantized("below sm89 it takes fp8 weights alone", Seen(capability=at_most(88)))
    eight = Args(**EIGHT_BITS)
    w4a8 = Args(**INT4, strategy={"channel", "group"})
    cases = [
        EngineCase(
            "fp8 blocks, static inputs",
            [_with(w, weights=Args(strategy="block")) for math in FP8_MATH for w in fp8(FLOAT_INPUTS[1], **math)],
            error="AssertionError",
        ),
        EngineCase(
            "fp8 weights and inputs",
            [w for math in FP8_MATH for w in fp8(*FLOAT_INPUTS, **math)],
            "CompressedTensorsW8A8Fp8",
            same_as=("w8a8_fp8",),
            faults=(*FP8_FAULTS, *FP8_INPUT_FAULTS, BLOCK_ROWS, BELOW_90),
        ),
        EngineCase(
            "fp8 weights and inputs, below sm89",
            fp8(*FLOAT_INPUTS),
            "CompressedTensorsW8A16Fp8",
            same_as=("w8a16_fp8",),
            faults=(*FP8_FAULTS, below),
        ),
        EngineCase(
            "fp8 weights",
            Seen(format=ACT, weights=FP8_WEIGHTS),
            "CompressedTensorsW8A16Fp8",
            same_as=("w8a16_fp8",),
            faults=(*FP8_FAULTS, UNQUANTIZED_INPUTS),
        ),
        EngineCase("weight-only, nothing so far", Seen(format=ACT, inputs=Absent), error="AttributeError"),
        EngineCase(
            "8-bit weights, one static scale for 8-bit inputs",
            Seen(format=ACT, weights=eight, inputs=Args(num_bits=8, strategy="tensor", dynamic=False)),
            "CompressedTensorsW8A8Int8",
            same_as=("wNa8_int",),
            faults=INT8_FAULTS,
        ),
        EngineCase(
            "8-bit weights, 8-bit inputs per token",
            Seen(format=ACT, weights=eight, inputs=Args(**TOKEN_8)),
            "CompressedTensorsW8A8Int8",
            same_as=("wNa8_int",),
            faults=INT8_FAULTS,
        ),
        EngineCase(
            "int4 weights, int8 inputs per token",
            Seen(format=ACT, weights=w4a8, inputs=Args(type="int", **TOKEN_8)),
            "CompressedTensorsW4A8Int",
            same_as=("wNa8_int",),
            faults=(
                read_as("int-quantized"),
                Fault("does not look at whether the inputs have zero points", Seen(inputs=Args(symmetric=False))),
                SCALES,
                INPUT_SCALES,
                OUTPUTS,
            ),
        ),
    ]
    return _minimal(cases)


#: classes whose minimum is not 75: lower than any device of today, or asked for by the case itself
_OTHER_MINIMUM = {
    *("CompressedTensorsW8A8Fp8", "CompressedTensorsW4A8Fp8"),
    *("CompressedTensorsWNA8O8Int", "CompressedTensorsW4A8Int"),
}


def _minimal(cases: list[EngineCase]) -> tuple[EngineCase, ...]:
    return tuple(
        part
        for case in cases
        for part in ((case,) if case.runs is None or case.runs in _OTHER_MINIMUM else needs(75, case))
    )


LINEAR = (
    *_nvfp4(),
    *_mx(),
    *_int_inputs(),
    *_act_formats(),
    EngineCase("nothing matches", Seen(), error="NotImplementedError"),
)
