"""Tiny models with float8 caches and attention, and compressed-tensors' own forward of the model it was given."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from quantdispatch.engines.cache import QuantCache

SIZES = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
    "tie_word_embeddings": False,
}  # fmt: skip
#: family -> config, model, further settings; two of them slide
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, {}),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM, {"sliding_window": 6}),
    "gemma3": (
        transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM,
        {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 16},
    ),
    "deepseek": (
        transformers.DeepseekV3Config, transformers.DeepseekV3ForCausalLM,
        {"first_k_dense_replace": 2, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8,
         "qk_nope_head_dim": 8, "v_head_dim": 12, "num_key_value_heads": 4, "head_dim": 8},
    ),
}  # fmt: skip
IDS = torch.arange(1, 25).reshape(2, 12) * 5 % 127 + 1
Make = Callable[..., tuple[Path, torch.Tensor]]


def maker(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """``make(kind, strategy, family)`` -> folder, logits of IDS by compressed-tensors' forward, each made once."""
    made: dict[Any, tuple[Path, torch.Tensor]] = {}

    def make(kind: str = "kv_cache", strategy: str = "tensor", family: str = "llama") -> tuple[Path, torch.Tensor]:
        key = (kind, strategy, family)
        if key not in made:
            folder = tmp_path_factory.mktemp("cache") / "model"
            made[key] = folder, _write(folder, *key)
        return made[key]

    return make


def _write(folder: Path, kind: str, strategy: str, family: str) -> torch.Tensor:
    """Config and scales as compressed-tensors writes them, whose own hooks know attention up to transformers 5.23."""
    model = dense_model(family)
    block = config_block(model, kind, strategy)
    model.save_pretrained(folder)
    raw = json.loads((folder / "config.json").read_text())
    raw["quantization_config"] = {**block.model_dump(), "format": "dense", "version": "0.20.1"}
    (folder / "config.json").write_text(json.dumps(raw, default=str))
    tensors, config = load_file(folder / "model.safetensors"), model.config
    heads = {"k": config.num_key_value_heads, "v": config.num_key_value_heads, "q": config.num_attention_heads}
    for number, layer in enumerate(model.model.layers):
        for part, size in (("k", 0.02), ("v", 0.01), *([("q", 0.03)] if kind == "attention" else [])):
            # coarse, and different everywhere: a wrong or lost one shows
            scale = size * (number + 1) * torch.arange(1.0, 2.0 if strategy == "tensor" else heads[part] + 1.0)
            scale = scale if strategy == "tensor" else scale.reshape(-1, 1, 1)
            tensors[f"model.layers.{number}.self_attn.{part}_scale"] = scale
            layer.self_attn.register_buffer(f"{part}_scale", scale)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return fake_quantized(model, kind, strategy)


def dense_model(family: str) -> Any:
    config, cls, more = FAMILIES[family]
    torch.manual_seed(1)
    model = cls(config(**{**SIZES, **more})).eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.15)
    return model


def config_block(model: Any, kind: str, strategy: str) -> Any:
    """What ``QuantizationConfig.from_pretrained`` makes of such a model: attention implies a cache scheme."""
    from compressed_tensors.quantization import QuantizationConfig

    args = {"num_bits": 8, "type": "float", "strategy": strategy, "symmetric": True, "dynamic": False}
    attention = type(model.model.layers[0].self_attn).__name__
    groups = {"group_0": {"targets": [attention], "input_activations": args}} if kind == "attention" else {}
    return QuantizationConfig(config_groups=groups, kv_cache_scheme=args)


class Rounding:
    """Takes the place of a cache of one attention module: compressed-tensors' fake-quantize, and nothing stored."""

    def __init__(self, attention: Any, args: Any) -> None:
        self.attention, self.args = attention, args

    def round(self, part: str, states: torch.Tensor) -> torch.Tensor:
        from compressed_tensors.quantization.lifecycle.forward import fake_quantize

        rounded: torch.Tensor = fake_quantize(states, getattr(self.attention, f"{part}_scale"), None, self.args)
        return rounded

    def update(self, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return self.round("k", keys), self.round("v", values)


@torch.no_grad()
def fake_quantized(model: Any, kind: str, strategy: str) -> torch.Tensor:
    """Logits of IDS with keys, values and queries as compressed-tensors rounds them in ``modeling/``."""
    from compressed_tensors.quantization import QuantizationArgs
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    args = QuantizationArgs(num_bits=8, type="float", strategy=strategy)
    original = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def rounded_queries(module: Any, query: torch.Tensor, *rest: Any, **more: Any) -> Any:
        return original(module, Rounding(module, args).round("q", query), *rest, **more)

    if kind == "attention":
        ALL_ATTENTION_FUNCTIONS.register("rounded_queries_of_the_test", rounded_queries)
        ALL_MASK_ATTENTION_FUNCTIONS.register("rounded_queries_of_the_test", ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
        model.set_attn_implementation("rounded_queries_of_the_test")
    for layer in model.model.layers:
        hook: Any = lambda module, given, named: (given, {**named, CACHE: Rounding(module, args)})  # noqa: E731
        layer.self_attn.register_forward_pre_hook(hook, with_kwargs=True)
    logits: torch.Tensor = model(IDS, use_cache=False).logits
    return logits


#: what transformers calls the cache, as an argument and among the outputs
CACHE = "cache" if "cache" in inspect.signature(transformers.LlamaForCausalLM.forward).parameters else "past_key_values"


def cache_of(output: Any) -> Any:
    return output[CACHE] if CACHE in output else output["past_key_values"]


def caches(model: Any) -> list[QuantCache]:
    return [module for module in model.modules() if isinstance(module, QuantCache)]


def close(a: torch.Tensor, b: torch.Tensor, limit: float = 1e-5) -> bool:
    return bool((a.double() - b.double()).norm() <= limit * b.double().norm())


def copied(folder: Path, target: Path, rename: Callable[[str], str | None]) -> Path:
    target.mkdir(exist_ok=True)
    tensors = {new: t for k, t in load_file(folder / "model.safetensors").items() if (new := rename(k)) is not None}
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text((folder / "config.json").read_text())
    return target
