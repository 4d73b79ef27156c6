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
CHANNEL: dict[str, Any] = {"strategy": "channel", "actorder": {None, "weight", "static"}}
GROUP: dict[str, Any] = {
    "strategy": "group",
    "group_size": at_least(1),
    "actorder": {None, "weight", "static", "group"},
}


def _weights(strategy: dict[str, Any]) -> Args:
    return Args(
        type="int", num_bits=between(2, 8), symmetric={True, False}, dynamic=False, scale_dtype=FLOAT_SCALES, **strategy
    )


def _when(formats: set[str]) -> When:
    first, second = (
        When(kind=KINDS, format=formats, weights=_weights(strategy), inputs=Absent, outputs=Absent)
        for strategy in (CHANNEL, GROUP)
    )
    return first | second  # type: ignore[return-value]


RULES = (
    Rule(
        name="wNa16_int",
        summary="int2 to int8 weights, packed, symmetric or asymmetric, channel or group; inputs unquantized",
        when=_when({"pack-quantized"}),
        scheme="quantdispatch.schemes.wna16_int:WNA16Int",
        equivalents={
            "vllm": {"CompressedTensorsWNA16": When(weights=Args(actorder={None, "weight", "static"}))},
            "sglang": {"CompressedTensorsWNA16": When(weights=Args(num_bits={4, 8}))},
        },
    ),
    Rule(
        name="wNa16_int-unpacked",
        summary="int2 to int8 weights stored as int8, symmetric or asymmetric, channel or group; inputs unquantized",
        when=_when({"int-quantized", "naive-quantized"}),
        scheme="quantdispatch.schemes.wna16_int:WNA16Int",
    ),
)
