"""SGLang 0.5.23 on routed experts: ``get_quant_method`` and ``get_moe_scheme``. Section (a2); classes (c), (d).

Three names of the first expert decide for all. The top-level format counts in places where the group's should.
"""

from __future__ import annotations

from ..domains import at_least, at_most, not_in
from ..predicates import Args
from .case import EngineCase, Fault, Seen
from .parts import (
    DYNAMIC_WEIGHTS,
    EIGHT_BITS,
    FLOAT_WEIGHTS,
    INPUT_BITS,
    INPUT_SCALES,
    INT4,
    MX_SCALES,
    NO_INPUT_ZEROS,
    NVFP4,
    OUTPUTS,
    SCALES,
    TOKEN_8,
    TRUTHY,
    UNQUANTIZED_INPUTS,
    WEIGHT_BITS,
    both,
    inputs_unquantized,
    per_group_of_128,
    read_as,
)
from .sglang_linear import (
    DROPPED,
    FLOAT_INPUTS,
    FP8_FAULTS,
    MARLIN_FAULTS,
    NV_FAULTS,
    NV_INPUTS,
    PACK,
    given,
    no_inputs,
)

#: ``--moe-runner-backend``
AUTO, TRITON, FLASHINFER = RUNNERS = ("auto", "triton", "flashinfer_trtllm")
_MXFP4_ARGS = {"type": "float", "num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": True}
_NOT_MXFP4 = Fault(
    "runs the experts as mxfp4, because the top-level format or the group of Linear is, whatever their own args say",
    *(Seen(weights=Args(**{name: not_in({value})})) for name, value in _MXFP4_ARGS.items()),
)
_ZEROS = Fault(
    "mangles the zero points: it loads them untransposed and undoes an order of nibbles that they never had",
    Seen(weights=Args(symmetric=False)),
)
_FP8_INPUTS = (INPUT_BITS, INPUT_SCALES, NO_INPUT_ZEROS, *per_group_of_128())
_PACKED = read_as(PACK)


def _mxfp4() -> EngineCase:  # (a2) 0: before ignore and before any target
    return EngineCase(
        "mxfp4 in the top-level format, or for Linear",
        [Seen(top_format="mxfp4-pack-quantized"), Seen(linear_mxfp4=True)],
        "Mxfp4MoEMethod",
        same_as=("w4a16_mxfp4",),
        faults=(_NOT_MXFP4, read_as("mxfp4-pack-quantized"), MX_SCALES, DYNAMIC_WEIGHTS, UNQUANTIZED_INPUTS, OUTPUTS),
    )


def _packed() -> tuple[EngineCase, ...]:  # (a2) 3
    ints = no_inputs(weights=Args(type="int", dynamic=False, strategy={"channel", "group"}))
    int4 = {**INT4, "strategy": "group"}

    def more(**fields: object) -> list[Seen]:
        return [both(w, Seen(**fields)) for w in ints]

    groups_of_32 = Args(**{**int4, "group_size": 32})
    triton = Args(**{**int4, "group_size": {32, 128}, "actorder": None})
    ordered = Args(**{**int4, "group_size": 32, "actorder": not_in({None})})
    # the default on sm100; other integers go on to Marlin there
    for_triton = [*more(runner=TRITON, weights=triton), *more(runner=AUTO, capability={100, 103}, weights=triton)]
    same = ("wNa16_int",)
    sound = (_PACKED, DROPPED, SCALES, OUTPUTS)
    return (
        EngineCase(
            "int4 groups of 32 with activation ordering, for FlashInfer",
            more(runner=FLASHINFER, weights=ordered),
            error="AssertionError",
        ),
        EngineCase(
            "int4 groups of 32, for FlashInfer",
            more(runner=FLASHINFER, weights=groups_of_32, top_format=PACK),
            "CompressedTensorsMxInt4MoE",
            same_as=same,
            faults=sound,
        ),
        EngineCase(
            "int4 groups of 32 or 128, for Triton",
            [both(w, Seen(top_format=PACK)) for w in for_triton],
            "CompressedTensorsWNA16TritonMoE",
            same_as=same,
            faults=sound,
        ),
        EngineCase("other integers, for Triton", more(runner=TRITON), error="ValueError"),
        EngineCase(
            "packed int4 or int8",
            more(top_format=PACK, weights=Args(num_bits={4, 8})),
            "CompressedTensorsWNA16MoE",
            same_as=same,
            faults=(_ZEROS, *MARLIN_FAULTS, *sound),
        ),
        EngineCase("other integers per channel or group", ints, error="ValueError"),
    )


def _nvfp4() -> tuple[EngineCase, ...]:  # (a2) 4 and 5
    below = inputs_unquantized("below sm100 it takes the weights alone", Seen(capability=at_most(99)))
    alike = given(Args(**NVFP4), weights=Args(**NVFP4))
    return (
        EngineCase(
            "nvfp4 weights",
            no_inputs(weights=Args(**NVFP4)),
            "CompressedTensorsW4A16Nvfp4MoE",
            same_as=("w4a16_nvfp4",),
            faults=(*NV_FAULTS, DROPPED),
        ),
        EngineCase(
            "nvfp4 weights and inputs",
            both(alike, Seen(capability=at_least(100))),
            "CompressedTensorsW4A4Nvfp4MoE",
            same_as=("w4a4_nvfp4",),
            faults=(*NV_FAULTS, *NV_INPUTS),
        ),
        EngineCase(
            "nvfp4 weights and inputs, below sm100",
            alike,
            "CompressedTensorsW4A16Nvfp4MoE",
            same_as=("w4a16_nvfp4",),
            faults=(*NV_FAULTS, below),
        ),
    )


def _eight_bits() -> tuple[EngineCase, ...]:  # (a2) 6 and 7
    weights = Args(**FLOAT_WEIGHTS, strategy={"tensor", "channel", "block"})
    w8a8 = [given(inputs, weights=weights) for inputs in FLOAT_INPUTS]
    pairs = (
        {"weights": Args(strategy="tensor"), "inputs": Args(strategy="tensor")},
        {"weights": Args(strategy="channel"), "inputs": Args(strategy="token")},
        {"weights": Args(strategy="block")},
    )
    known = [both(w, Seen(**pair)) for w in w8a8 for pair in pairs]
    return (
        EngineCase(
            "fp8 weights and inputs",
            known,
            "CompressedTensorsW8A8Fp8MoE",
            same_as=("w8a8_fp8",),
            faults=(*FP8_FAULTS, WEIGHT_BITS, *_FP8_INPUTS),
        ),
        EngineCase("fp8 weights and inputs that do not go together", w8a8, error="AssertionError"),
        EngineCase(
            "8-bit weights, 8-bit inputs per token",
            given(Args(**TOKEN_8), weights=Args(**EIGHT_BITS)),
            error="NotImplementedError",
        ),
    )


def _int4() -> tuple[EngineCase, ...]:  # (a2) 8 to 10
    inputs = Args(num_bits=8, dynamic=TRUTHY)
    w4a8 = given(inputs, top_format=PACK, weights=Args(**INT4))
    faults = (
        _PACKED,
        Fault("executes int8 activations as fp8", Seen(inputs=Args(type="int"))),
        Fault("does not look at the inputs' strategy", Seen(inputs=Args(strategy=not_in({"token"})))),
        Fault("quantizes the inputs without zero points", Seen(inputs=Args(symmetric=False))),
        Fault("takes the weights' groups for 128 wide", Seen(weights=Args(group_size=not_in({128})))),
        Fault("reads bits and groups from the group of Linear, not from the experts' own", Seen(linear_entry="other")),
        SCALES,
        INPUT_SCALES,
        OUTPUTS,
    )
    return (
        EngineCase(
            "packed int4, 8-bit inputs, no group of Linear", both(w4a8, Seen(linear_entry="absent")), error="KeyError"
        ),
        EngineCase(
            "packed int4, dynamic 8-bit inputs",
            w4a8,
            "CompressedTensorsW4AFP8MoE",
            same_as=("w4a8_fp8",),
            faults=faults,
        ),
        EngineCase("weight-only, nothing so far", no_inputs(), error="AttributeError"),
        EngineCase(
            "4-bit weights, 8-bit inputs per token",
            given(
                Args(**TOKEN_8), weights=Args(num_bits=4, symmetric=True, dynamic=False, strategy={"channel", "group"})
            ),
            error="NotImplementedError",
        ),
        EngineCase("nothing matches", Seen(), error="RuntimeError"),
    )


MOE = (_mxfp4(), *_packed(), *_nvfp4(), *_eight_bits(), *_int4())
