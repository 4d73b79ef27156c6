"""Weight-only integer rules: int weights, 16-bit (or 32-bit) activations.

Format: compressed-tensors ``pack-quantized`` (``compressors/pack_quantized``) and the unpacked ``int-quantized`` and
``naive-quantized`` (``compressors/naive_quantized``).
"""

from __future__ import annotations

from ..domains import between
from .parts import ASYMMETRIC, PACKED, UNPACKED, WEIGHT_ONLY, int_boxes
from .rule import Rule

SYMMETRIC_KINDS, ASYMMETRIC_KINDS = WEIGHT_ONLY, ASYMMETRIC | {"embedding"}

RULES = (
    Rule(
        name="wNa16_int",
        summary="int1 to int8 weights, packed, tensor, channel, group or block; inputs unquantized",
        when=int_boxes(between(1, 8), PACKED, symmetric_kinds=SYMMETRIC_KINDS, asymmetric_kinds=ASYMMETRIC_KINDS),
        scheme="quantdispatch.schemes.wna16_int:WNA16Int",
    ),
    Rule(
        name="wNa16_int-unpacked",
        summary="int1 to int8 weights stored as int8, tensor, channel, group or block; inputs unquantized",
        when=int_boxes(between(1, 8), UNPACKED, symmetric_kinds=SYMMETRIC_KINDS, asymmetric_kinds=ASYMMETRIC_KINDS),
        scheme="quantdispatch.schemes.wna16_int:WNA16Int",
    ),
)
