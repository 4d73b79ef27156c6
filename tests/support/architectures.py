"""Module names and classes of real architectures, cut to a few layers: what ``plan(modules=)`` is given.

Names are those of the checkpoints (one projection of one expert each), classes those of transformers.
"""

from __future__ import annotations

from collections.abc import Iterable

Modules = dict[str, str | tuple[str, ...]]

QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
MLA = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
LINEAR = ("Linear",)


def _linears(prefix: str, names: Iterable[str]) -> Modules:
    return {f"{prefix}.{name}": LINEAR for name in names}


def _outside(prefix: str = "model") -> Modules:
    return {f"{prefix}.embed_tokens": ("Embedding",), "lm_head": LINEAR}


def llama(layers: Iterable[int] = (0, 1), prefix: str = "model", family: str = "Llama") -> Modules:
    """Also Mistral, Qwen2, Qwen3 dense."""
    found = _outside(prefix)
    for i in layers:
        block = f"{prefix}.layers.{i}"
        found[f"{block}.self_attn"] = (f"{family}Attention", "Module")
        found |= _linears(f"{block}.self_attn", QKVO) | _linears(f"{block}.mlp", MLP)
    return found


def qwen3_moe(layers: Iterable[int] = (0, 1), experts: int = 2, family: str = "Qwen3Moe") -> Modules:
    found = _outside()
    for i in layers:
        block = f"model.layers.{i}"
        found[f"{block}.self_attn"] = (f"{family}Attention", "Module")
        found |= _linears(f"{block}.self_attn", QKVO) | {f"{block}.mlp.gate": LINEAR}
        for e in range(experts):
            found |= _linears(f"{block}.mlp.experts.{e}", MLP)
    return found


def mixtral(layers: Iterable[int] = (0, 1), experts: int = 2) -> Modules:
    found = _outside()
    for i in layers:
        block = f"model.layers.{i}"
        found[f"{block}.self_attn"] = ("MixtralAttention", "Module")
        found |= _linears(f"{block}.self_attn", QKVO) | {f"{block}.block_sparse_moe.gate": LINEAR}
        for e in range(experts):
            found |= _linears(f"{block}.block_sparse_moe.experts.{e}", ("w1", "w2", "w3"))
    return found


def deepseek(
    layers: Iterable[int] = (0, 3), experts: int = 2, dense: int = 1, prefix: str = "model", family: str = "DeepseekV3"
) -> Modules:
    """Also Kimi K2 and GLM's sparse models: the first layers have an ordinary MLP, the others a shared expert too."""
    found = _outside(prefix)
    for i in layers:
        block = f"{prefix}.layers.{i}"
        found[f"{block}.self_attn"] = (f"{family}Attention", "Module")
        found |= _linears(f"{block}.self_attn", MLA)
        if i < dense:
            found |= _linears(f"{block}.mlp", MLP)
            continue
        found |= _linears(f"{block}.mlp.shared_experts", MLP)
        for e in range(experts):
            found |= _linears(f"{block}.mlp.experts.{e}", MLP)
    return found


def kimi_vl(layers: Iterable[int] = (0, 3)) -> Modules:
    """Kimi K2.5: a DeepSeek model beside a vision tower and a projector."""
    found = deepseek(layers, prefix="language_model.model")
    found["language_model.lm_head"] = found.pop("lm_head")
    tower = "vision_tower.encoder.blocks.0"
    return (
        found | _linears(tower, ("wqkv", "wo", "mlp.fc0", "mlp.fc1")) | _linears("mm_projector", ("proj.0", "proj.2"))
    )


def deepseek_v4(layers: Iterable[int] = (0, 1), experts: int = 2) -> Modules:
    found: Modules = {"embed": ("Embedding",), "head": LINEAR}
    for i in layers:
        block = f"layers.{i}"
        found |= _linears(f"{block}.attn", ("fused_wqa_wkv", "wq_b", "wo_a", "wo_b"))
        found |= _linears(f"{block}.ffn.shared_experts", MLP) | {f"{block}.ffn.gate": LINEAR}
        for e in range(experts):
            found |= _linears(f"{block}.ffn.experts.{e}", MLP)
    return found


def gemma_multimodal(layers: Iterable[int] = (0, 1)) -> Modules:
    found = llama(layers, "model.language_model", "Gemma4")
    return (
        found
        | _linears("model.embed_vision", ("patch_dense", "multimodal_embedder.embedding_projection"))
        | _linears("model.embed_audio", ("embedding_projection",))
    )


def qwen3_5(layers: Iterable[int] = (0, 3), moe: bool = False, tower: bool = True) -> Modules:
    """Three layers of linear attention, then one of full attention; a vision tower beside the language model."""
    found = _outside("model.language_model")
    for i in layers:
        block = f"model.language_model.layers.{i}"
        if i % 4 == 3:
            found[f"{block}.self_attn"] = ("Qwen3_5Attention", "Module")
            found |= _linears(f"{block}.self_attn", QKVO)
        else:
            found |= _linears(
                f"{block}.linear_attn", ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj")
            )
            found[f"{block}.linear_attn.conv1d"] = ("Conv1d",)
        if moe:
            found |= _linears(f"{block}.mlp", ("gate", "shared_expert_gate"))
            found |= _linears(f"{block}.mlp.shared_expert", MLP)
            for e in range(2):
                found |= _linears(f"{block}.mlp.experts.{e}", MLP)
        else:
            found |= _linears(f"{block}.mlp", MLP)
    if tower:
        found |= _linears("model.visual.blocks.0", ("attn.qkv", "attn.proj", "mlp.linear_fc1", "mlp.linear_fc2"))
    return found
