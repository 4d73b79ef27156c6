"""What the layers of language models are usually called: what a pattern is tried on where there are no tensors.

Names are those of checkpoints, several families together. A pattern may mean layers that are not among them; nothing
is concluded from a name that is missing here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any

from .modules import config_parts

PREFIXES = ("model.", "", "model.language_model.", "language_model.model.")
#: layers asked about first: an early one, and two that patterns over ranges of layers reach
LAYERS = (0, 5, 40)

_QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLA = ("q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")
_EXPERTS = ("mlp.experts.0", "ffn.experts.0", "block_sparse_moe.experts.0", "feed_forward.experts.0", "moe.experts.0")
_IN_EXPERTS = (*_MLP, "w1", "w2", "w3", "gate_up_proj")


def _under(parent: str, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{parent}.{name}" for name in names)


LINEARS = (
    *_under("self_attn", dict.fromkeys((*_QKVO, *_MLA, "qkv_proj", "out_proj"))),
    *_under("mlp", (*_MLP, "gate_up_proj", "fc1", "fc2", "gate", "shared_expert_gate")),
    *_under("mlp.shared_expert", _MLP),
    *_under("mlp.shared_experts", _MLP),
    *_under("linear_attn", ("in_proj_qkv", "in_proj_qkvz", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj")),
    *_under("attention", ("wq", "wk", "wv", "wo", "query_key_value", "dense")),
    *_under("attn", ("wq_a", "wq_b", "wkv", "wo_a", "wo_b", "fused_wqa_wkv", *_QKVO)),
    *_under("feed_forward", ("w1", "w2", "w3", *_MLP)),
    *_under("feed_forward.shared_expert", _MLP),
    *_under("ffn", _MLP),
    *_under("ffn.shared_experts", (*_MLP, "w1", "w2", "w3")),
    *_under("mixer", ("in_proj", "out_proj")),
    "block_sparse_moe.gate",
)
EXPERTS = tuple(f"{experts}.{name}" for experts in _EXPERTS for name in _IN_EXPERTS)
ATTENTIONS = ("self_attn", "attn", "attention")
EMBEDDINGS = ("model.embed_tokens", "model.language_model.embed_tokens", "transformer.wte")
HEADS = ("lm_head", "language_model.lm_head")


def in_blocks(layers: Iterable[int], names: Iterable[str]) -> Iterator[str]:
    """``names`` inside each of ``layers``, under every prefix."""
    for prefix, layer, name in product(PREFIXES, layers, names):
        yield f"{prefix}layers.{layer}.{name}"


def beside_experts(raw: Mapping[str, Any]) -> Iterator[list[str]]:
    """The Linears that a model with routed experts has beside them, once for each way to name them.

    Which there are follows from its config: heads of attention, dense first layers, shared experts.
    """
    parts = config_parts(raw)

    def says(key: str) -> Any:
        return next((part[key] for part in parts if part.get(key) is not None), None)

    inside = [f"0.self_attn.{name}" for name in _QKVO]
    inside += [f"1.self_attn.{name}" for name in _QKVO]
    if says("kv_lora_rank") is not None:
        inside = [f"{layer}.self_attn.{name}" for layer in (0, 1) for name in _MLA]
    if says("mlp_only_layers") != [] and says("first_k_dense_replace") != 0:
        inside += [f"0.mlp.{name}" for name in _MLP]
    shared: tuple[str, ...] = ()
    if says("n_shared_experts") or says("num_shared_experts") or says("shared_expert_intermediate_size"):
        shared = ("mlp.shared_experts", "mlp.shared_expert")
    for prefix, where in product(PREFIXES, shared or ("",)):
        names = inside + ([f"1.{where}.{name}" for name in _MLP] if where else [])
        yield [f"{prefix}layers.{name}" for name in names]
