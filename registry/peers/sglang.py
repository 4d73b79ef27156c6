"""SGLang 0.5.23: all its cases, and those of heads and the cache: sections (a1) and (a3)."""

from __future__ import annotations

from ..domains import not_in
from ..predicates import Args
from .case import Engine, EngineCase, Fault, Seen
from .sglang_linear import LINEAR, MARLIN, PARSING
from .sglang_moe import AUTO, FLASHINFER, MOE, TRITON

HEAD = (
    EngineCase(
        "found by its class",
        Seen(target="class"),
        "UnquantizedEmbeddingMethod",
        faults=(Fault("takes no class for the head, loads it as unquantized and finds its tensors unknown", Seen()),),
    ),
    EngineCase("weights per block", Seen(weights=Args(strategy="block")), error="NotImplementedError"),
    *LINEAR,
)

CACHE = (
    EngineCase(
        "fp8, one static scale",
        Seen(
            strategy_given=True,
            inputs=Args(type="float", num_bits=8, strategy="tensor", symmetric=True, dynamic=False),
        ),
        "CompressedTensorsKVCacheMethod",
        same_as=("kv_fp8",),
        faults=(
            Fault(
                "gives the cache plain scales, whatever the scale dtype",
                Seen(inputs=Args(scale_dtype=not_in({None, "bfloat16", "float16", "float32"}))),
            ),
        ),
    ),
    EngineCase(
        "anything else",
        Seen(),
        "RadixAttention",
        faults=(Fault("warns and leaves the cache unquantized", Seen()),),
    ),
)

SGLANG = Engine(
    "sglang",
    "SGLang 0.5.23",
    {
        "linear": (*PARSING, *LINEAR),
        "moe": (*PARSING, *MOE),
        "lm_head": (*PARSING, *HEAD),
        "kv_cache": CACHE,
    },
    faults=(Fault("never reads transform_config", Seen(online_transforms=True)),),
    settings=(
        {"runner": AUTO, "fp4_gemm": AUTO},
        *({"runner": runner, "fp4_gemm": AUTO} for runner in (TRITON, FLASHINFER)),
        {"runner": AUTO, "fp4_gemm": MARLIN},
    ),
)
