"""Weight-only integer rules: int weights, 16-bit (or 32-bit) activations.

Format: compressed-tensors ``pack-quantized`` (``compressors/pack_quantized``) and the unpacked ``int-quantized`` and
``naive-quantized`` (``compressors/naive_quantized``). Group activation ordering (``weight_g_idx``) is no longer written
but old checkpoints have it; a channel has no groups to order.
"""

from __future__ import annotations

from typing import Any

from ..domains import at_least, between
from ..predicates import Args, When
from ..values import ABSENT as Absent
from .rule import Rule

KINDS = {"linear", "lm_head"}
#: a scale in one of these; uint8 (an exponent) and float8 belong to the mx and nv formats
FLOAT_SCALES = {None, "bfloat16", "float16", "float32"}
TENSOR: dict[str, Any] = {"strategy": "tensor", "actorder": {None, "weight", "static"}}
CHANNEL: dict[str, Any] = {"strategy": "channel", "actorder": {None, "weight", "static"}}
GROUP: dict[str, Any] = {
    "strategy": "group",
    "group_size": at_least(1),
    "actorder": {None, "weight", "static", "group"},
}


STRATEGIES = (TENSOR, CHANNEL, GROUP)
PACKED = {"pack-quantized"}
UNPACKED = {"int-quantized", "naive-quantized"}


def boxes(formats: set[str], inputs: Any) -> tuple[When, ...]:
    """Every way to quantize int weights of 2 to 8 bits, stored in ``formats``, with ``inputs``."""
    weights = {"type": "int", "num_bits": between(2, 8), "symmetric": {True, False}, "dynamic": False}
    return tuple(
        When(
            kind=KINDS,
            format=formats,
            weights=Args(**weights, scale_dtype=FLOAT_SCALES, **strategy),
            inputs=inputs,
            outputs=Absent,
        )
        for strategy in STRATEGIES
    )


VLLM = When(weights=Args(strategy={"channel", "group"}, actorder={None, "weight", "static"}))
SGLANG = When(weights=Args(strategy={"channel", "group"}, num_bits={4, 8}))

RULES = (
    Rule(
        name="wNa16_int",
        summary="int2 to int8 weights, packed, symmetric or not, tensor, channel or group; inputs unquantized",
        when=boxes(PACKED, Absent),
        scheme="quantdispatch.schemes.wna16_int:WNA16Int",
        equivalents={"vllm": {"CompressedTensorsWNA16": VLLM}, "sglang": {"CompressedTensorsWNA16": SGLANG}},
    ),
    Rule(
        name="wNa16_int-unpacked",
        summary="int2 to int8 weights stored as int8, symmetric or not, tensor, channel or group; inputs unquantized",
        when=boxes(UNPACKED, Absent),
        scheme="quantdispatch.schemes.wna16_int:WNA16Int",
    ),
)
