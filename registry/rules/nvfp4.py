"""NVFP4: fp4 (e2m1) weights in groups of 16, e4m3 scales, and one fp32 global scale that divides.

Format: compressed-tensors ``nvfp4-pack-quantized`` (``compressors/nvfp4/base.py``), two codes a byte. Inputs: none, or
quantized alike with a stored ``input_global_scale`` and scales of the groups made at run time (``dynamic: "local"``).
"""

from __future__ import annotations

from typing import Any

from ..predicates import Args, When
from ..values import ABSENT as Absent
from .parts import MATRICES, UNORDERED, WEIGHT_ONLY
from .rule import Rule

NVFP4: dict[str, Any] = {
    "type": "float",
    "num_bits": 4,
    "strategy": "tensor_group",
    "group_size": 16,
    "symmetric": True,
    "scale_dtype": {None, "float8_e4m3fn"},
}
WEIGHTS = Args(**NVFP4, dynamic=False, actorder=UNORDERED)
INPUTS = Args(**NVFP4, dynamic="local", actorder=None)
FORMAT = "nvfp4-pack-quantized"

RULES = (
    Rule(
        name="w4a4_nvfp4",
        summary="nvfp4 weights; nvfp4 inputs, groups of 16 scaled at run time below a stored global scale",
        when=When(kind=MATRICES, format=FORMAT, weights=WEIGHTS, inputs=INPUTS, outputs=Absent),
        scheme="quantdispatch.schemes.nvfp4:W4A4NvFp4",
    ),
    Rule(
        name="w4a16_nvfp4",
        summary="nvfp4 weights; inputs unquantized",
        when=When(kind=WEIGHT_ONLY, format=FORMAT, weights=WEIGHTS, inputs=Absent, outputs=Absent),
        scheme="quantdispatch.schemes.nvfp4:W4A16NvFp4",
    ),
)
