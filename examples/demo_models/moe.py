"""Random models with routed experts. transformers stacks the experts of a layer, where compressed-tensors does not see
them: its compressors are applied to the tensors of the file, expert by expert."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .cache import made_once
from .quiet import quiet
from .tiny import byte_tokenizer
from .variants import Group

FAMILIES = ("qwen3_moe", "mixtral", "deepseek_v3")
#: everything that is a matrix of a linear layer, experts included, but routers, embeddings and heads
LINEARS = re.compile(r"\.(?:[qkvo]_proj|(?:q|kv)_[ab]_proj(?:_with_mqa)?|(?:gate|up|down)_proj|w[123])$")
_SIZES: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "num_experts_per_tok": 2,
}


def tiny_moe(
    folder: Path,
    groups: dict[str, Group],
    *,
    family: str = "qwen3_moe",
    ignore: tuple[str, ...] = ("lm_head", r"re:.*\.gate$"),
    experts: int = 4,
    max_shard_size: str = "5GB",
    seed: int = 0,
) -> Path:
    """Write a checkpoint of ``family`` in which each linear layer is quantized by the first of ``groups`` with a target
    (``"Linear"``, a name, or a ``re:`` pattern) that hits it, unless ``ignore`` has it."""

    def make(partial: Path) -> None:
        from safetensors.torch import load_file, save_file

        with tempfile.TemporaryDirectory() as scratch, quiet():
            _model(family, experts, seed).save_pretrained(scratch, max_shard_size=max_shard_size)
            config = json.loads((Path(scratch) / "config.json").read_text())
            places: dict[str, str] = {}
            for shard in sorted(Path(scratch).glob("*.safetensors")):
                tensors = {}
                for name, tensor in load_file(shard).items():
                    tensors.update(_stored(name, tensor, groups, ignore))
                save_file(tensors, partial / shard.name, metadata={"format": "pt"})
                places.update(dict.fromkeys(tensors, shard.name))
        if len(set(places.values())) > 1:
            index = {"metadata": {}, "weight_map": places}
            (partial / "model.safetensors.index.json").write_text(json.dumps(index))
        config["quantization_config"] = _block(groups, ignore)
        (partial / "config.json").write_text(json.dumps(config, indent=1))
        byte_tokenizer().save_pretrained(partial)

    return made_once(folder, make)


def _matches(patterns: tuple[str, ...], module: str) -> bool:
    return any(
        re.match(p.removeprefix("re:"), module) is not None if p.startswith("re:") else p in (module, "Linear")
        for p in patterns
    )


def _stored(name: str, tensor: Any, groups: dict[str, Group], ignore: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    module, _, local = name.rpartition(".")
    group = next((g for g in groups.values() if _matches(g.targets, module)), None)
    if local != "weight" or group is None or not LINEARS.search(module) or _matches(ignore, module):
        yield name, tensor
        return
    for key, value in compress(tensor, group).items():
        yield f"{module}.{key}", value


def compress(weight: Any, group: Group) -> dict[str, Any]:
    """The tensors that compressed-tensors stores for ``weight`` [N, K], rounded to nearest."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    from .rtn import _weight_range

    args = QuantizationArgs(**group.weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=args, format=group.format)
    scale, zero_point = calculate_qparams(*_weight_range(weight.float(), args), args)
    state = {"weight": weight, "weight_scale": scale.to(weight.dtype)}
    if not args.symmetric:
        state["weight_zero_point"] = zero_point
    compressor: Any = BaseCompressor.get_value_from_registry(group.format)
    stored: dict[str, Any] = compressor.compress(state, scheme)
    return {key: value.detach().clone().contiguous() for key, value in stored.items()}


def _block(groups: dict[str, Group], ignore: tuple[str, ...]) -> dict[str, Any]:
    formats = {group.format for group in groups.values()}
    return {
        "quant_method": "compressed-tensors",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "version": "0.20.1",
        "ignore": list(ignore),
        "config_groups": {
            name: {
                "targets": list(group.targets),
                "weights": group.weights,
                "input_activations": group.inputs,
                "format": group.format,
            }
            for name, group in groups.items()
        },
    }


def _model(family: str, experts: int, seed: int) -> Any:
    import torch
    import transformers

    makers: dict[str, tuple[Callable[..., Any], Callable[..., Any], dict[str, Any]]] = {
        "qwen3_moe": (
            transformers.Qwen3MoeConfig,
            transformers.Qwen3MoeForCausalLM,
            {"num_experts": experts, "moe_intermediate_size": 64, "head_dim": 32},
        ),
        "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM, {"num_local_experts": experts}),
        "deepseek_v3": (
            transformers.DeepseekV3Config,
            transformers.DeepseekV3ForCausalLM,
            {
                "n_routed_experts": experts,
                "moe_intermediate_size": 64,
                "n_shared_experts": 1,
                "first_k_dense_replace": 1,
                "n_group": 1,
                "topk_group": 1,
                "q_lora_rank": 64,
                "kv_lora_rank": 64,
                "qk_nope_head_dim": 32,
                "qk_rope_head_dim": 32,
                "v_head_dim": 32,
                "num_key_value_heads": 4,
            },
        ),
    }
    config_class, model_class, more = makers[family]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config_class(**{**_SIZES, **more}))
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                torch.nn.init.normal_(parameter, std=0.08)
    return model.to(torch.bfloat16)
