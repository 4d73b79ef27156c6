"""vLLM 0.32.0 on linear layers: ``get_scheme`` of compressed_tensors.py, with what its constructors refuse.

Section (a0) and (a1) of the facts; kernels from (c).
"""

from __future__ import annotations

from typing import Any

from ..domains import Domain, at_least, at_most, not_in
from ..predicates import Args
from ..values import ABSENT as Absent
from .case import EngineCase, Fault, Seen
from .parts import (
    DYNAMIC_WEIGHTS,
    EIGHT_BITS,
    FLOAT_AS_INT,
    FLOAT_WEIGHTS,
    INPUT_BITS,
    INPUT_SCALES,
    INT4,
    INT8_INPUTS,
    MX_SCALES,
    MXFP4,
    MXFP8,
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

#: Marlin, Machete, Triton and the CPU's kernel ignore what WNA8Int and WNA4Int tell of the inputs; Humming, which comes
#: after them (before Marlin on sm90), does not. A channel's group size is -1 or absent.
_CHANNEL = {"strategy": "channel"}
_NOT_HUMMING = (
    Seen(**CPU),
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
_WEIGHT_ONLY_KERNELS = inputs_unquantized("the kernel that it takes there is weight-only", *_NOT_HUMMING)

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
MX_FAULTS = (read_as("mxfp4-pack-quantized"), MX_SCALES, DYNAMIC_WEIGHTS, OUTPUTS)
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
FP8_INPUT_FAULTS = (INPUT_BITS, INPUT_SCALES, NO_INPUT_ZEROS, *per_token(), *per_group_of_128())
_BLOCK_ROWS = Fault(
    "takes the rows of a block for the size of the inputs' groups", Seen(block_rows=not_in({128, Absent}))
)
_BELOW_90 = inputs_unquantized(
    "its kernel for blocks there (Marlin) is weight-only", Seen(capability=89, weights=Args(strategy="block"))
)
INT8_FAULTS = (read_as("int-quantized"), FLOAT_AS_INT, INT8_INPUTS, SCALES, INPUT_SCALES, OUTPUTS)


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
        faults=(*MX_FAULTS, *mx_inputs(4, "mxfp4")),
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
                faults=(_WEIGHT_ONLY_KERNELS, SCALES, INPUT_SCALES, OUTPUTS),
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
    return _minimal({"CompressedTensorsW4A8Fp8": 90, "CompressedTensorsWNA8O8Int": 70}, cases)


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
            faults=(*FP8_FAULTS, *FP8_INPUT_FAULTS, _BLOCK_ROWS, _BELOW_90),
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
    return _minimal({"CompressedTensorsW8A8Fp8": 89, "CompressedTensorsW4A8Int": 1}, cases)


def _minimal(minimum: dict[str, int], cases: list[EngineCase]) -> tuple[EngineCase, ...]:
    """75 where nothing else is said. None of the recorded devices is below it."""
    return tuple(
        part for case in cases for part in ((case,) if case.runs is None else needs(minimum.get(case.runs, 75), case))
    )


LINEAR = (
    *_nvfp4(),
    *_mx(),
    *_int_inputs(),
    *_act_formats(),
    EngineCase("nothing matches", Seen(), error="NotImplementedError"),
)
