"""Fuzz target: a config.json, read and planned. An answer that is JSON, or an error of ours."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import fuzzing
import json_mutations

from quantdispatch.registry.config_json import parse_json_file
from quantdispatch.registry.plan import plan

WORDS = (
    *("targets", "weights", "input_activations", "output_activations", "format", "ignore", "config_groups"),
    *("kv_cache_scheme", "sparsity_config", "transform_config", "quant_method", "quantization_config", "text_config"),
    *("num_bits", "type", "strategy", "group_size", "symmetric", "dynamic", "actorder", "block_structure", "version"),
    *("scale_dtype", "zp_dtype", "int", "float", "group", "tensor_group", "channel", "token", "block", "attn_head"),
    *("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "nvfp4-pack-quantized", "dense"),
    *("mxfp4-pack-quantized", "mixed-precision", "W4A16", "W8A8", "FP8_BLOCK", "NVFP4", "local", "torch.uint8"),
    *("Linear", "Embedding", "lm_head", "re:.*proj", "re:(a+)+$", "re:(?=a)b", "re:.*experts.*", "LlamaAttention"),
)
MODULES = {
    "model.embed_tokens": "Embedding",
    "model.layers.0.self_attn": "LlamaAttention",
    "model.layers.0.self_attn.q_proj": "Linear",
    "model.layers.0.mlp.experts.3.down_proj": ("MyLinear", "Linear"),
    "lm_head": "Linear",
}
FILE = Path(tempfile.mkdtemp(prefix="fuzz-config-")) / "config.json"


def mutate(document: Any, chance: random.Random) -> Any:
    return json_mutations.mutate(document, chance, WORDS)


def check(data: bytes) -> None:
    FILE.write_bytes(data)
    document = parse_json_file(FILE)
    # what a user gets, without a model; then with names to match: both read the config anew
    for source, modules in ((FILE, None), (document, MODULES)):
        result = plan(source, strict=False, modules=modules)
        json.dumps(result.to_json(), default=repr).encode()
        for error in result.errors:
            fuzzing.printable(error)
