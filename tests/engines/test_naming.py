"""Checkpoint names to run-time names, by transformers' own rules."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers", reason="names are transformers' business")

import quantdispatch as qd  # noqa: E402
from quantdispatch.engines.modules import QuantLinear  # noqa: E402
from quantdispatch.engines.transformers.naming import RuntimeNames, plain_linear  # noqa: E402
from quantdispatch.engines.transformers.routed import Place, find_place  # noqa: E402

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64,
    "num_key_value_heads": 2,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8,
    "patch_size": 4, "projection_dim": 16,
}  # fmt: skip


def llama(cls: Any = None) -> Any:
    return (cls or transformers.LlamaForCausalLM)(transformers.LlamaConfig(**SIZES))


def llava() -> Any:
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**SIZES), vision_config=transformers.CLIPVisionConfig(**VISION)
    )
    return transformers.LlavaForConditionalGeneration(config)


Q = "layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("build", "stored", "runtime"),
    [
        (llama, f"model.{Q}", f"model.{Q}"),
        (llama, Q, f"model.{Q}"),
        (llama, "lm_head", "lm_head"),
        (llama, "model.layers.7.self_attn.q_proj", None),
        (lambda: llama(transformers.LlamaModel), f"model.{Q}", Q),
        (lambda: llama(transformers.LlamaModel), "lm_head", None),
        (llava, f"language_model.model.{Q}", f"model.language_model.{Q}"),
        (llava, "language_model.lm_head", "lm_head"),
        (llava, "multi_modal_projector.linear_1", "model.multi_modal_projector.linear_1"),
        (llava, f"model.language_model.{Q}", f"model.language_model.{Q}"),
    ],
)
def test_modules_are_found_under_their_run_time_names(build: Any, stored: str, runtime: str | None) -> None:
    with torch.device("meta"):
        names = RuntimeNames(build())
    assert names.module(stored) == runtime


def test_a_routed_expert_is_found_in_its_stack() -> None:
    with torch.device("meta"):
        names = RuntimeNames(
            transformers.MixtralForCausalLM(
                transformers.MixtralConfig(**SIZES, num_local_experts=2, num_experts_per_tok=1)
            )
        )
    place = names.module("model.layers.0.block_sparse_moe.experts.1.w3")
    assert place == Place("model.layers.0.mlp.experts", "gate_up_proj", 1, 1, "w3")


@pytest.mark.parametrize(
    ("name", "operations"),
    [
        ("model.layers.0.self_attn.q_proj", ["Concatenate"]),
        ("model.layers.0.mlp.experts.1.w3", ["Concatenate"]),
        ("model.layers.0.mlp.experts.1.w3", ["MergeModulelist", "Transpose"]),
    ],
)
def test_a_module_that_transformers_merges_otherwise_is_refused_by_name(name: str, operations: list[str]) -> None:
    converter = SimpleNamespace(
        source_patterns=["pattern"], operations=[type(kind, (), {"dim": 1})() for kind in operations]
    )
    with pytest.raises(qd.CheckpointError, match="which packed weights cannot be") as caught:
        find_place(name, "model.layers.0.mlp.experts.gate_up_proj", "pattern", [converter])
    assert caught.value.layer == name


@pytest.mark.parametrize(
    ("build", "stored", "runtime"),
    [
        (llama, "model.layers.0.self_attn", "model.layers.0.self_attn"),
        (llama, "layers.0.self_attn", "model.layers.0.self_attn"),
        (llama, "model.layers.7.self_attn", None),
        (lambda: llama(transformers.LlamaModel), "model.layers.0.self_attn", "layers.0.self_attn"),
        (llava, "language_model.model.layers.0.self_attn", "model.language_model.layers.0.self_attn"),
    ],
)
def test_attention_is_found_though_it_has_no_weight(build: Any, stored: str, runtime: str | None) -> None:
    with torch.device("meta"):
        names = RuntimeNames(build())
    assert names.container(stored) == runtime


class Scaled(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize("module", [nn.Embedding(4, 4), Scaled(4, 4), nn.Identity()], ids=lambda m: type(m).__name__)
def test_only_a_plain_linear_is_replaced(module: nn.Module) -> None:
    model = nn.ModuleDict({"fc": module})
    with pytest.raises(qd.CheckpointError, match=type(module).__name__):
        plain_linear(model, "fc", "fc")


def test_a_checkpoint_of_the_base_model_loads_into_the_whole(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    """Its names have no ``model.`` in front."""
    from safetensors.torch import load_file, save_file

    source = tiny_checkpoint("w4a16-sym")
    folder = Path(shutil.copytree(source, tmp_path / "copy"))
    tensors = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    save_file(bare, folder / "model.safetensors", metadata={"format": "pt"})
    model, truth = qd.load(folder), qd.load(source)
    assert sum(isinstance(m, QuantLinear) for m in model.modules()) == 14
    ids = torch.arange(12)[None]
    with torch.no_grad():
        assert torch.equal(model(ids).logits, truth(ids).logits)
