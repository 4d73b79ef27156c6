"""The key and value cache, and attention's own inputs, in float8_e4m3 with static scales.

Format: compressed-tensors ``kv_cache_scheme``, and config groups without weights whose targets are attention modules.
A scale serves a whole tensor, or one head (``attn_head``).
"""

from __future__ import annotations

from ..predicates import Args, When
from ..values import ABSENT as Absent
from .parts import FLOAT_SCALES
from .rule import Rule

FP8 = Args(
    type="float",
    num_bits=8,
    strategy={"tensor", "attn_head"},
    symmetric=True,
    dynamic=False,
    scale_dtype=FLOAT_SCALES,
    actorder=None,
)

RULES = (
    Rule(
        name="kv_fp8",
        summary="keys and values in fp8, one static scale each for a tensor or for every head",
        when=When(kind={"kv_cache", "attention"}, weights=Absent, inputs=FP8, outputs=Absent),
        scheme="quantdispatch.schemes.kv_fp8:KVFp8",
    ),
)
