"""float8_e4m3 weights, with fp8 inputs or weight-only.

Format: compressed-tensors ``float-quantized`` and its old spelling ``naive-quantized``; block scales are
[ceil(N/bn), ceil(K/bk)]. Inputs: {tensor, channel} weights take dynamic token and static or dynamic tensor inputs,
block and group weights take dynamic inputs per token or per group.
"""

from __future__ import annotations

from typing import Any

from ..domains import at_least
from ..predicates import Args, When
from ..values import ABSENT as Absent
from .parts import DYNAMIC, FLOAT_SCALES, MATRICES, STATIC, TOKEN, UNORDERED, WEIGHT_ONLY, fp8_args
from .rule import Rule

FORMATS = {"float-quantized", "naive-quantized"}
PLAIN: dict[str, Any] = {"strategy": {"tensor", "channel"}}
BLOCK: dict[str, Any] = {"strategy": "block"}
GROUP: dict[str, Any] = {"strategy": "group", "group_size": at_least(1)}
GROUP_128: dict[str, Any] = {"strategy": "group", "group_size": 128, "dynamic": True}
GROUPS: dict[str, Any] = {"strategy": "group", "group_size": at_least(1), "dynamic": True}


def _when(way: dict[str, Any], inputs: Any) -> When:
    weights = Args(
        type="float",
        num_bits=8,
        symmetric=True,
        dynamic=False,
        scale_dtype=FLOAT_SCALES,
        actorder=UNORDERED,
        **way,
    )
    return When(
        kind=WEIGHT_ONLY if inputs is Absent else MATRICES,
        format=FORMATS,
        weights=weights,
        inputs=inputs,
        outputs=Absent,
    )


RULES = (
    Rule(
        name="w8a8_fp8",
        summary="fp8 weights per tensor or channel; fp8 inputs, dynamic per token, static or dynamic per tensor",
        when=[_when(PLAIN, inputs) for inputs in fp8_args((TOKEN, STATIC, DYNAMIC))],
        scheme="quantdispatch.schemes.fp8:W8A8Fp8",
    ),
    Rule(
        name="w8a8_fp8-block",
        summary="fp8 weights per block; fp8 inputs, dynamic per group of 128 or per token",
        when=[_when(BLOCK, inputs) for inputs in fp8_args((TOKEN, GROUP_128))],
        scheme="quantdispatch.schemes.fp8:W8A8Fp8",
    ),
    Rule(
        name="w8a8_fp8-group",
        summary="fp8 weights per group with float scales; fp8 inputs, dynamic per group or per token",
        when=[_when(GROUP, inputs) for inputs in fp8_args((TOKEN, GROUPS))],
        scheme="quantdispatch.schemes.fp8:W8A8Fp8",
    ),
    Rule(
        name="w8a16_fp8",
        summary="fp8 weights per tensor, channel, group or block, with float scales; inputs unquantized",
        when=[_when(way, Absent) for way in (PLAIN, GROUP, BLOCK)],
        scheme="quantdispatch.schemes.fp8:W8A16Fp8",
    ),
)
