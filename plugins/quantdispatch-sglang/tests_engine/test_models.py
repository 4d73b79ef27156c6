"""Models of SGLang, whole: built with the config, loaded by their own ``load_weights``, and asked layer by layer.

Attention and the rotation of positions need kernels that are not here; what the plugin computes does not.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from layers import Stored, close, config, sglang_config, stored, weights
from test_experts import run
from transformers import LlamaConfig, MixtralConfig, Qwen3MoeConfig

H, INNER, EXPERTS, VOCABULARY = 128, 64, 4, 128
COMMON: dict[str, Any] = {
    "hidden_size": H, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "vocab_size": VOCABULARY, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip
#: module and class, config, names of the experts' module and of their projections
MODELS: dict[str, tuple[str, str, Any, str, tuple[str, ...]]] = {
    "llama": ("llama", "LlamaForCausalLM", lambda: LlamaConfig(intermediate_size=INNER, **COMMON), "", ()),
    "qwen3 moe": (
        "qwen3_moe", "Qwen3MoeForCausalLM",
        lambda: Qwen3MoeConfig(moe_intermediate_size=INNER, num_experts=EXPERTS, num_experts_per_tok=2, **COMMON),
        "mlp", ("gate_proj", "up_proj", "down_proj"),
    ),
    "mixtral": (
        "mixtral", "MixtralForCausalLM",
        lambda: MixtralConfig(intermediate_size=INNER, num_local_experts=EXPERTS, num_experts_per_tok=2, **COMMON),
        "block_sparse_moe", ("w1", "w3", "w2"),
    ),
}  # fmt: skip
BLOCK = config(
    (["Linear"], weights(4, 32, symmetric=False), None, "pack-quantized"), ignore=["lm_head", "re:.*\\.gate$"]
)


@pytest.mark.parametrize("name", MODELS)
def test_a_model(name: str, ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module, made, configured, parent, projections = MODELS[name]
    source = importlib.import_module(f"sglang.srt.models.{module}")
    monkeypatch.setattr(source, "get_rope", lambda *_, **__: torch.nn.Module())
    layers = checkpoint(parent, projections)
    with ranks():
        kind = getattr(source, made)
        mapping = getattr(kind, "packed_modules_mapping", {})
        model = kind(configured(), quant_config=sglang_config(BLOCK, mapping))
        model.load_weights(
            (f"{layer}.{local}", tensor) for layer, own in layers.items() for local, tensor in own.tensors.items()
        )
        for part in model.modules():
            if hasattr(getattr(part, "quant_method", None), "report"):
                part.quant_method.process_weights_after_loading(part)
    x = torch.randn(3, H)
    for number in range(2):
        block = model.model.layers[number]
        prefix = f"model.layers.{number}"
        attention = torch.cat([layers[f"{prefix}.self_attn.{n}_proj"](x) for n in "qkv"], dim=-1)
        close(block.self_attn.qkv_proj(x)[0], attention)
        if projections:
            check_experts(getattr(block, parent).experts, layers, f"{prefix}.{parent}.experts", projections)
        else:
            both = torch.cat([layers[f"{prefix}.mlp.{n}_proj"](x) for n in ("gate", "up")], dim=-1)
            close(block.mlp.gate_up_proj(x)[0], both)
    report = model.quant_config.report if hasattr(model, "quant_config") else None
    if report is not None:
        assert f"{sum(k[0] == 'wNa16_int' for k in report.kernels.values())} layers wNa16_int" in report.line()


def checkpoint(parent: str, projections: tuple[str, ...]) -> dict[str, Stored]:
    sizes = {"q": 128, "k": 64, "v": 64}
    layers = {}
    for number in range(2):
        prefix = f"model.layers.{number}"
        for n, rows in sizes.items():
            layers[f"{prefix}.self_attn.{n}_proj"] = stored(BLOCK, f"{prefix}.self_attn.{n}_proj", rows, H)
        layers[f"{prefix}.self_attn.o_proj"] = stored(BLOCK, f"{prefix}.self_attn.o_proj", H, 128)
        for last, n, k in zip(
            projections or ("gate_proj", "up_proj", "down_proj"), (INNER, INNER, H), (H, H, INNER), strict=True
        ):
            if not projections:
                layers[f"{prefix}.mlp.{last}"] = stored(BLOCK, f"{prefix}.mlp.{last}", n, k)
            for e in range(EXPERTS if projections else 0):
                expert = f"{prefix}.{parent}.experts.{e}.{last}"
                layers[expert] = stored(BLOCK, expert, n, k, "moe")
    return layers


def check_experts(module: Any, layers: dict[str, Stored], prefix: str, projections: tuple[str, ...]) -> None:
    x, index = torch.randn(3, H), torch.tensor([[0, 3], [1, 2], [3, 1]])
    share = torch.rand(3, 2)
    total = torch.zeros_like(x)
    for row in range(3):
        for e, weight in zip(index[row].tolist(), share[row], strict=True):
            gate, up, down = (layers[f"{prefix}.{e}.{last}"] for last in projections)
            own = x[row : row + 1]
            total[row] += weight * down(torch.nn.functional.silu(gate(own)) * up(own))[0]
    close(run(module, x, index, share), total, 1e-4)
