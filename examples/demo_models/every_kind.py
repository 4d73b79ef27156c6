"""A random model with every kind of layer: linear, routed experts, an embedding and a head, N and K mostly different.

transformers stacks the experts of a layer in one tensor, which compressed-tensors does not quantize. Here each expert
has its own linear layers, under the names that checkpoints have for them, as writers unfuse a model to quantize it.
"""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .quiet import quiet
from .rtn import quantize_and_save
from .variants import Group, Variant

VOCABULARY, HIDDEN, EXPERTS = 96, 64, 4
#: kind of a layer -> the target that hits all layers of this kind, and no other
TARGETS = {
    "linear": r"re:.*self_attn\.[qkvo]_proj$",
    "moe": r"re:.*mlp\.experts\.\d+\.\w+_proj$",
    "lm_head": r"re:lm_head$",
    "embedding": r"re:.*embed_tokens$",
}


class Expert(nn.Module):
    def __init__(self, gate_up: Tensor, down: Tensor, activation: nn.Module) -> None:
        super().__init__()
        gate, up = gate_up.chunk(2)
        self.gate_proj, self.up_proj, self.down_proj = _linear(gate), _linear(up), _linear(down)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))
        return result


class Experts(nn.ModuleList):
    """One module an expert: x [tokens, H], the experts chosen for each token and their shares [tokens, top_k]."""

    def forward(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        result = torch.zeros_like(x)
        for number, expert in enumerate(self):
            tokens, places = torch.where(chosen == number)
            if len(tokens):
                result.index_add_(0, tokens, expert(x[tokens]) * shares[tokens, places, None].to(x.dtype))
        return result


def unfused_model(dtype: torch.dtype = torch.bfloat16) -> Any:
    """A Qwen3-MoE of one layer, the same at every call."""
    config, model_class = _config_and_class()
    model = model_class(copy.deepcopy(config)).eval()  # a model may change its config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                nn.init.normal_(parameter, std=0.12)
        # a router that is never in doubt: a choice that falls otherwise would hide what the experts compute
        block = model.model.layers[0].mlp
        nn.init.normal_(block.gate.weight, std=1.0)
    fused = block.experts
    block.experts = Experts(
        Expert(a, b, fused.act_fn) for a, b in zip(fused.gate_up_proj, fused.down_proj, strict=True)
    )
    return model.to(dtype)


def write(folder: Path, groups: tuple[Group, ...], calibration: Tensor) -> None:
    """Write the model with ``groups`` quantized (targets as in ``TARGETS``), static scales from ``calibration``."""
    quantize_and_save(unfused_model(), Variant(groups, ignore=()), folder, calibration)


def _linear(weight: Tensor) -> nn.Linear:
    with torch.device("meta"):
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
    return layer


@cache
def _config_and_class() -> tuple[Any, Any]:
    with quiet():
        from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

        config = Qwen3MoeConfig(
            vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=96, moe_intermediate_size=32,
            num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=EXPERTS,
            num_experts_per_tok=2, max_position_embeddings=64, tie_word_embeddings=False, bos_token_id=None,
            eos_token_id=None, pad_token_id=None,
        )  # fmt: skip
    return config, Qwen3MoeForCausalLM
