"""Integer weights with quantized activations: int8 or int4 inputs, int8 inputs and outputs, or fp8 inputs.

Formats as in :mod:`.int_weights`; scales and zero points of inputs and outputs, where static, are stored beside the
weights. Inputs are dynamic per token, per tensor or per group, or have one static scale.
"""

from __future__ import annotations

from ..domains import between
from .parts import (
    DYNAMIC,
    GROUPS,
    PACKED,
    STATIC,
    TOKEN,
    UNPACKED,
    fp8_args,
    int_args,
    int_boxes,
)
from .rule import Rule

WAYS = (TOKEN, STATIC, DYNAMIC, GROUPS)
INT8, INT4 = int_args(8, WAYS), int_args(4, WAYS)
STATIC_INT8 = int_args(8, [STATIC])
FP8 = fp8_args((TOKEN, STATIC, DYNAMIC))

RULES = (
    Rule(
        name="wNa8_int",
        summary="int1 to int8 weights stored as int8; int8 inputs, static or dynamic",
        when=int_boxes(between(1, 8), UNPACKED, INT8),
        scheme="quantdispatch.schemes.wna8_int:WNA8Int",
    ),
    Rule(
        name="wNa8_int-packed",
        summary="int1 to int8 weights, packed; int8 inputs, static or dynamic",
        when=int_boxes(between(1, 8), PACKED, INT8),
        scheme="quantdispatch.schemes.wna8_int:WNA8Int",
    ),
    Rule(
        name="wNa4_int",
        summary="int1 to int8 weights, packed or stored as int8; int4 inputs, static or dynamic",
        when=int_boxes(between(1, 8), PACKED | UNPACKED, INT4),
        scheme="quantdispatch.schemes.wna4_int:WNA4Int",
    ),
    Rule(
        name="wNa8o8_int",
        summary="int1 to int8 weights, packed or stored as int8; static int8 inputs and outputs, a scale each",
        when=int_boxes(between(1, 8), PACKED | UNPACKED, STATIC_INT8, STATIC_INT8[0]),
        scheme="quantdispatch.schemes.wna8o8_int:WNA8O8Int",
    ),
    Rule(
        name="w4a8_fp8",
        summary="int4 weights, packed or stored as int8; fp8 inputs, dynamic per token, static or dynamic per tensor",
        when=int_boxes(4, PACKED | UNPACKED, FP8),
        scheme="quantdispatch.schemes.w4a8_fp8:W4A8Fp8",
    ),
)
