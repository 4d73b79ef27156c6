"""float8_e4m3 weights, with fp8 inputs or weight-only.

Format: compressed-tensors ``float-quantized`` and its old spelling ``naive-quantized``; block scales are
[ceil(N/bn), ceil(K/bk)]. Inputs: {tensor, channel} weights take dynamic token and static or dynamic tensor inputs,
block weights take dynamic inputs per token or per group of 128.
"""

from __future__ import annotations

from typing import Any

from ..predicates import Args, When
from ..values import ABSENT as Absent
from .int_weights import FLOAT_SCALES, KINDS
from .rule import Rule

FORMATS = {"float-quantized", "naive-quantized"}
PLAIN = {"tensor", "channel"}


def _weights(strategy: Any) -> Args:
    return Args(
        type="float",
        num_bits=8,
        strategy=strategy,
        symmetric=True,
        dynamic=False,
        scale_dtype=FLOAT_SCALES,
        actorder=None,
    )


def _inputs(**fields: Any) -> Args:
    return Args(type="float", num_bits=8, symmetric=True, scale_dtype=FLOAT_SCALES, **fields)


def _when(strategy: Any, inputs: Any) -> When:
    return When(kind=KINDS, format=FORMATS, weights=_weights(strategy), inputs=inputs, outputs=Absent)


TOKEN = When(inputs=Args(strategy="token"))
STATIC = When(inputs=Args(strategy="tensor", dynamic=False))

RULES = (
    Rule(
        name="w8a8_fp8",
        summary="fp8 weights per tensor or channel; fp8 inputs, dynamic per token, static or dynamic per tensor",
        when=(
            _when(PLAIN, _inputs(strategy="token", dynamic=True)),
            _when(PLAIN, _inputs(strategy="tensor", dynamic={True, False})),
        ),
        scheme="quantdispatch.schemes.fp8:W8A8Fp8",
        equivalents={
            "vllm": {"CompressedTensorsW8A8Fp8": TOKEN | STATIC},
            "sglang": {"CompressedTensorsW8A8Fp8": TOKEN | STATIC},
        },
        differs={
            "vllm": {"scales inputs per token, not per tensor": When(inputs=Args(strategy="tensor", dynamic=True))}
        },
    ),
    Rule(
        name="w8a8_fp8-block",
        summary="fp8 weights per block; fp8 inputs, dynamic per group of 128 or per token",
        when=(
            _when("block", _inputs(strategy="group", group_size=128, dynamic=True)),
            _when("block", _inputs(strategy="token", dynamic=True)),
        ),
        scheme="quantdispatch.schemes.fp8:W8A8Fp8",
        equivalents={
            "vllm": {"CompressedTensorsW8A8Fp8": When(inputs=Args(strategy="group"))},
            "sglang": {"CompressedTensorsW8A8Fp8": When(inputs=Args(strategy="group"))},
        },
    ),
    Rule(
        name="w8a16_fp8",
        summary="fp8 weights per tensor, channel or block; inputs unquantized",
        when=_when(PLAIN | {"block"}, Absent),
        scheme="quantdispatch.schemes.fp8:W8A16Fp8",
        equivalents={
            "vllm": ("CompressedTensorsW8A16Fp8",),
            "sglang": {"CompressedTensorsW8A16Fp8": When(weights=Args(strategy={"tensor", "channel"}))},
        },
    ),
)
