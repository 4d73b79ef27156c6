"""What can be planned and not be loaded is refused by its name, before a model is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_plans as tiny

import quantdispatch as qd
from quantdispatch.engines.verify import verify

ATTN = "model.layers.0.self_attn"
CACHE = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
PROJECTIONS = tiny.layers(*(f"{ATTN}.{p}_proj" for p in "qkvo"))
SCALES = {f"{ATTN}.{part}_scale": ("F32", [1]) for part in "kvq"}
CASES = {
    "embedding": (
        tiny.config(tiny.group(targets=["Linear", "Embedding"])),
        {**PROJECTIONS, **tiny.int4("model.embed_tokens")},
        "model.embed_tokens",
        "quantized embedding (wNa16_int)",
    ),
    "kv_cache": (
        tiny.config(kv_cache_scheme=CACHE),
        {**PROJECTIONS, **SCALES},
        ATTN,
        "quantized key and value cache (kv_fp8)",
    ),
    "attention": (
        tiny.config(tiny.group(), tiny.group(None, CACHE, targets=["LlamaAttention"])),
        {**PROJECTIONS, **SCALES},
        ATTN,
        "quantized key and value cache (kv_fp8)",
    ),
}


@pytest.mark.parametrize("run", [qd.load, verify])
@pytest.mark.parametrize("kind", CASES)
def test_embeddings_and_caches(tmp_path: Path, kind: str, run: Any) -> None:
    config, tensors, name, words = CASES[kind]
    folder = tiny.checkpoint(tmp_path, config, tensors)
    layer = qd.plan(folder).layers[name]
    assert layer.error is None and layer.kind == kind and layer.backend == "reference"
    with pytest.raises(qd.NoKernelFound) as caught:
        run(folder)
    assert caught.value.layer == name and words in str(caught.value) and caught.value.observed == kind
