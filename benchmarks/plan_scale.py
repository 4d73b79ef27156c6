"""Planning a checkpoint of the size of Kimi-K2: CPU seconds and memory of ``plan()`` over 208,000 stored tensors.

The checkpoint is synthetic: config, index and headers are those of moonshotai/Kimi-K2-Thinking (61 layers, 384 experts,
int4 in groups of 32), the data are holes in the files, but for the bytes of ``weight_shape``, which a plan reads.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

LAYERS, DENSE_LAYERS, EXPERTS = 61, 1, 384
HIDDEN, EXPERT_SIZE, DENSE_SIZE, VOCABULARY = 7168, 2048, 18432, 163840
_BYTES = {"I64": 8, "I32": 4, "F32": 4, "BF16": 2}
#: safetensors lays the widest dtypes first, each by name
_ORDER = {"I64": 0, "F32": 1, "I32": 2, "BF16": 3}
#: where the values of ``weight_shape`` are: int64 values stand together, int32 ones between the packed weights
LAYOUTS: Mapping[str, str] = {"together": "I64", "scattered": "I32"}
Tensor = tuple[str, str, tuple[int, ...]]

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2",
    "num_hidden_layers": LAYERS,
    "n_routed_experts": EXPERTS,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "input_activations": None,
                "output_activations": None,
                "weights": {
                    **{"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True},
                    **{"dynamic": False, "actorder": None, "block_structure": None, "observer": "minmax"},
                },
            }
        },
        "ignore": [
            *("lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"),
            "re:.*\\.mlp\\.gate$",
        ],
    },
}
_ATTENTION = {
    "q_a_proj": (1536, HIDDEN),
    "q_b_proj": (12288, 1536),
    "kv_a_proj_with_mqa": (576, HIDDEN),
    "kv_b_proj": (16384, 512),
    "o_proj": (HIDDEN, 8192),
}


def write(folder: Path, *, layers: int = LAYERS, experts: int = EXPERTS, layout: str = "together") -> int:
    """Write the checkpoint with a shard for each layer; returns the number of tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2), encoding="utf-8")
    weight_map: dict[str, str] = {}
    for layer in range(layers):
        shard = f"model-{layer + 1:05d}-of-{layers:06d}.safetensors"
        tensors = sorted(_layer(layer, experts, LAYOUTS[layout]), key=lambda tensor: (_ORDER[tensor[1]], tensor[0]))
        _write_shard(folder / shard, tensors)
        weight_map.update((name, shard) for name, _, _ in tensors)
    index = {"metadata": {"total_size": 0}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return len(weight_map)


def _layer(layer: int, experts: int, shape_dtype: str) -> Iterator[Tensor]:
    prefix = f"model.layers.{layer}."
    if layer == 0:
        yield "model.embed_tokens.weight", "BF16", (VOCABULARY, HIDDEN)
        yield "model.norm.weight", "BF16", (HIDDEN,)
        yield "lm_head.weight", "BF16", (VOCABULARY, HIDDEN)
    for norm, size in {"input_layernorm": HIDDEN, "post_attention_layernorm": HIDDEN, "self_attn.q_a_layernorm": 1536,
                       "self_attn.kv_a_layernorm": 512}.items():  # fmt: skip
        yield f"{prefix}{norm}.weight", "BF16", (size,)
    for projection, shape in _ATTENTION.items():
        yield f"{prefix}self_attn.{projection}.weight", "BF16", shape
    if layer < DENSE_LAYERS:
        yield from _mlp(f"{prefix}mlp.", DENSE_SIZE)
        return
    yield from _mlp(f"{prefix}mlp.shared_experts.", EXPERT_SIZE)
    yield f"{prefix}mlp.gate.weight", "BF16", (EXPERTS, HIDDEN)
    yield f"{prefix}mlp.gate.e_score_correction_bias", "F32", (EXPERTS,)
    for expert in range(experts):
        for name, _, (n, k) in _mlp(f"{prefix}mlp.experts.{expert}.", EXPERT_SIZE):
            yield f"{name}_packed", "I32", (n, k // 8)
            yield f"{name}_scale", "BF16", (n, k // 32)
            yield f"{name}_shape", shape_dtype, (2,)


def _mlp(prefix: str, size: int) -> Iterator[Tensor]:
    for projection, shape in {"gate_proj": (size, HIDDEN), "up_proj": (size, HIDDEN),
                              "down_proj": (HIDDEN, size)}.items():  # fmt: skip
        yield f"{prefix}{projection}.weight", "BF16", shape


def _write_shard(path: Path, tensors: list[Tensor]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    values, end = [], 0
    for name, dtype, shape in tensors:
        start, end = end, end + math.prod(shape) * _BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
        if name.endswith(".weight_shape"):
            n, k = (HIDDEN, EXPERT_SIZE) if ".down_proj." in name else (EXPERT_SIZE, HIDDEN)
            values.append((start, b"".join(size.to_bytes(_BYTES[dtype], "little") for size in (n, k))))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + end)
        for start, content in values:
            stream.seek(8 + len(text) + start)
            stream.write(content)


#: in a process of its own: what it costs to plan, and the largest resident size that the process ever had
_PLAN = """
import json, os, resource, sys, time
import quantdispatch
from quantdispatch.registry import plan as _
start = time.process_time()
plan = quantdispatch.plan(sys.argv[1], strict=False)
seconds = time.process_time() - start
assert not plan.errors, plan.errors[0]
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
if os.path.exists("/proc/self/status"):  # what getrusage says there counts the process that started this one
    lines = [line.split() for line in open("/proc/self/status")]
    peak = next(int(words[1]) * 1024 for words in lines if words[0] == "VmHWM:")
print(json.dumps({"layers": len(plan.layers), "cpu_seconds": seconds, "process_cpu_seconds": time.process_time(),
                  "peak_bytes": peak}))
"""


def measure(runs: int = 5) -> list[dict[str, Any]]:
    """A row a layout: CPU seconds of ``plan()``, the least of ``runs`` fresh processes, and the most memory of any."""
    rows = []
    for layout in LAYOUTS:
        with tempfile.TemporaryDirectory() as folder:
            tensors = write(Path(folder), layout=layout)
            found = [_in_a_process(folder) for _ in range(runs)]
        best = min(found, key=lambda row: row["cpu_seconds"])
        peak = max(row["peak_bytes"] for row in found)
        rows.append({"weight_shape": layout, "tensors": tensors, **best, "peak_bytes": peak})
    return rows


def _in_a_process(folder: str) -> dict[str, Any]:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", _PLAN, folder], capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"planning {folder} fails: {done.stderr[-2000:]}")
    row: dict[str, Any] = json.loads(done.stdout)
    return row
