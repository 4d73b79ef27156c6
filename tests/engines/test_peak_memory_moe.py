"""Loading routed experts takes what is packed and a little more, however many there are: measured in a process of its
own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="loading a model needs the package transformers")

import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

SCRIPT = """
import json, re, sys
import torch, transformers, transformers.models.qwen3_moe.modeling_qwen3_moe
import quantdispatch as qd

def status(key):
    return int(re.search(rf"{key}:\\s+(\\d+) kB", open("/proc/self/status").read()).group(1)) * 1024

open("/proc/self/clear_refs", "w").write("5")   # the high-water mark starts again from here
idle = status("VmRSS")
model = qd.load(sys.argv[1])
from quantdispatch.engines.tensors import resident_bytes
print(json.dumps({"idle": idle, "peak": status("VmHWM"), "weights": resident_bytes(model)}))
"""
HIDDEN, INNER, EXPERTS, GROUP = 1024, 512, 256, 32


def _packed(name: str, n: int, k: int) -> dict[str, torch.Tensor]:
    return {
        f"{name}.weight_packed": torch.randint(-(1 << 31), 1 << 31, (n, k // 8)).to(torch.int32),
        f"{name}.weight_scale": torch.rand(n, k // GROUP).bfloat16() + 0.1,
        f"{name}.weight_shape": torch.tensor([n, k]),
    }


def _write(folder: Path) -> Path:
    """One layer of many experts: 220 MB packed, 400 MB with a byte a code, 800 MB in bf16."""
    from transformers import Qwen3MoeConfig

    config = Qwen3MoeConfig(
        vocab_size=64, hidden_size=HIDDEN, intermediate_size=INNER, moe_intermediate_size=INNER, num_hidden_layers=1,
        num_experts=EXPERTS, num_experts_per_tok=2, num_attention_heads=8, num_key_value_heads=2, head_dim=128,
        bos_token_id=None, eos_token_id=None, tie_word_embeddings=False,
    )  # fmt: skip
    layer = "model.layers.0"
    plain: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (64, HIDDEN),
        "lm_head.weight": (64, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        f"{layer}.input_layernorm.weight": (HIDDEN,),
        f"{layer}.post_attention_layernorm.weight": (HIDDEN,),
        f"{layer}.self_attn.q_norm.weight": (128,),
        f"{layer}.self_attn.k_norm.weight": (128,),
        f"{layer}.mlp.gate.weight": (EXPERTS, HIDDEN),
    }
    tensors = {name: torch.ones(shape, dtype=torch.bfloat16) for name, shape in plain.items()}
    for projection, n, k in (("q", 1024, HIDDEN), ("k", 256, HIDDEN), ("v", 256, HIDDEN), ("o", HIDDEN, 1024)):
        tensors |= _packed(f"{layer}.self_attn.{projection}_proj", n, k)
    for expert in range(EXPERTS):
        for projection, n, k in (("gate", INNER, HIDDEN), ("up", INNER, HIDDEN), ("down", HIDDEN, INNER)):
            tensors |= _packed(f"{layer}.mlp.experts.{expert}.{projection}_proj", n, k)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    weights: dict[str, Any] = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
    block = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head", r"re:.*\.gate$"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
    saved = {**config.to_dict(), "architectures": ["Qwen3MoeForCausalLM"], "quantization_config": block}
    (folder / "config.json").write_text(json.dumps(saved))
    return folder


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's /proc to measure memory")
def test_peak_is_the_packed_model_and_one_expert(tmp_path: Path) -> None:
    folder = _write(tmp_path)
    run = subprocess.run([sys.executable, "-c", SCRIPT, str(folder)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    figures = json.loads(run.stdout.splitlines()[-1])
    # One expert takes less than 10 MB on its way. What allocators keep of that until it is given back (every 16 MB of
    # the file), and what a process imports to load anything at all, does not grow with the number of experts.
    assert figures["peak"] - figures["idle"] <= figures["weights"] + 120e6, figures
