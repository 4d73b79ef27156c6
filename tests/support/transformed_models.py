"""Tiny checkpoints with transforms, and compressed-tensors' own hooks on the same weights decompressed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.transform import TransformConfig, apply_transform_config
from demo_models.quiet import quiet
from demo_models.rtn import quantize_and_save
from demo_models.variants import VARIANTS
from safetensors.torch import load_file, save_file
from torch import nn

import quantdispatch as qd
from quantdispatch.engines.transforms import OnlineTransform

IDS = torch.arange(40).reshape(2, 20)
#: how far a model with its transforms dropped has to be from the right one, for a test that could fail
FAR = 0.3


def apply(location: str, targets: Any = "Linear", inverse: bool = False, ignore: Any = "lm_head") -> dict[str, Any]:
    return {"targets": targets, "location": location, "inverse": inverse, "ignore": ignore}


def quip(kind: str, ignore: Any = "lm_head", **scheme: Any) -> dict[str, Any]:
    """What llm-compressor's QuIPModifier asks for."""
    inputs = [apply("input", ignore=ignore), apply("weight_input", inverse=True, ignore=ignore)]
    outputs = [apply("weight_output", ignore=ignore), apply("output", inverse=True, ignore=ignore)]
    return {"u": {"type": kind, "apply": outputs, **scheme}, "v": {"type": kind, "apply": inputs, **scheme}}


def spin(**scheme: Any) -> dict[str, Any]:
    """What its SpinQuantModifier asks for with R1, R2 and R4."""
    down = "re:.*down_proj$"
    first = ["re:.*q_proj$", "re:.*k_proj$", "re:.*v_proj$", "re:.*up_proj$", "re:.*gate_proj$", "lm_head"]
    return {
        "R1": {"type": "hadamard", "apply": [
            apply("weight_output", ["re:.*embed_tokens$", "re:.*o_proj$", down], ignore=[]),
            apply("weight_input", first, inverse=True, ignore=[]),
        ]},
        "R2": {"type": "hadamard", "head_dim": 32, "apply": [
            apply("weight_output", ["re:.*v_proj$"]), apply("weight_input", ["re:.*o_proj$"], inverse=True),
        ]},
        "R4": {"type": "hadamard", "apply": [apply("input", [down]), apply("weight_input", [down], True)], **scheme},
    }  # fmt: skip


def member(name: str) -> dict[str, Any]:
    """Inputs of one projection, whose neighbours take the same ones untransformed."""
    entries = [apply("input", [name]), apply("weight_input", [name], inverse=True)]
    return {"q": {"type": "random-hadamard", "head_dim": 32, "apply": entries}}


def several() -> dict[str, Any]:
    """Groups at one place that do not commute, and one that is applied twice there."""
    places = ("input", "output")
    return {
        "a": {"type": "random-hadamard", "head_dim": 32, "apply": [apply(place) for place in places]},
        "b": {"type": "random-hadamard", "head_dim": 64, "randomize": True,
              "apply": [apply(place, inverse=inverse) for place in places for inverse in (True, False, False)]},
        "c": {"type": "random-matrix", "head_dim": 16, "apply": [apply(place) for place in places]},
    }  # fmt: skip


F64, BF16 = "torch.float64", "torch.bfloat16"
#: name: (groups, variant, shape)
CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "quip-hadamard": (quip("hadamard", head_dim=64), "w4a16-asym", {}),
    "quip-random": (quip("random-hadamard"), "w4a16-asym", {}),
    "quip-random-f64": (quip("random-hadamard", precision=F64), "w4a16-sym", {}),
    "quip-permuted": (quip("hadamard", randomize=True, head_dim=32), "w4a16-asym", {}),
    "quip-permuted-random": (quip("random-hadamard", randomize=True), "w4a16-asym", {}),
    "quip-matrix": (quip("random-matrix"), "w4a16-asym", {}),
    "quip-matrix-blocks": (quip("random-matrix", head_dim=32, randomize=True), "w4a16-asym", {}),
    "quip-biases": (quip("random-hadamard"), "w4a16-asym", {"family": "Qwen2"}),
    "quip-large": (quip("hadamard"), "w4a16-asym", {"intermediate_size": 512}),
    "quip-large-random": (quip("random-hadamard"), "w4a16-asym", {"intermediate_size": 1152}),
    "quip-large-permuted": (quip("hadamard", randomize=True), "w4a16-asym", {"intermediate_size": 512}),
    "quip-head-too": (quip("random-hadamard", ignore=[]), "w4a16-asym", {}),
    "quip-int8": (quip("random-hadamard"), "w8a8-int8", {}),
    "quip-fp8": (quip("hadamard", head_dim=32), "fp8-dynamic", {}),
    "spin-r4": (spin(), "w4a16-asym", {"intermediate_size": 256}),
    "spin-r4-f64": (spin(precision=F64), "w4a16-asym", {"intermediate_size": 512}),
    "spin-r4-blocks": (spin(head_dim=64, precision=BF16), "w4a16-asym", {}),
    "several": (several(), "w4a16-asym", {}),
    "one-member": (member("re:.*q_proj$"), "w4a16-asym", {}),
}  # fmt: skip
#: inputs are quantized: a last bit of difference before that is a step of the grid after it
LOOSE = {"quip-int8": 3e-2, "quip-fp8": 3e-2, "spin-r4-blocks": 1e-2,
         # a matrix of random numbers is far from orthogonal: it multiplies what a sum in fp32 is off by
         "quip-matrix": 1e-3, "quip-matrix-blocks": 1e-3}  # fmt: skip


def write(groups: dict[str, Any], variant: str, shape: dict[str, Any], folder: Path, **save: Any) -> nn.Module:
    """A tiny checkpoint, and compressed-tensors' own model with hooks, its weights decompressed."""
    sizes = {
        "vocab_size": 96, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False, **shape,
    }  # fmt: skip
    family = sizes.pop("family", "Llama")
    config = getattr(transformers, f"{family}Config")(**sizes)
    with torch.random.fork_rng(devices=[]), torch.no_grad(), quiet():
        torch.manual_seed(0)
        model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 or name.endswith("bias"):
                nn.init.normal_(parameter, std=0.08)
        apply_transform_config(model, TransformConfig(config_groups=groups))
        quantize_and_save(model, VARIANTS[variant], folder, **save)
        ModelCompressor.from_pretrained_model(model).decompress_model(model)
    return model  # type: ignore[no-any-return]


#: of a case: its folder, the right logits, and those without transforms
Made = tuple[Path, torch.Tensor, torch.Tensor]
Make = Callable[[str], Made]


def maker(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """What makes a case by its name, once."""
    known: dict[str, Made] = {}

    def make(name: str) -> Made:
        if name not in known:
            folder = tmp_path_factory.mktemp(name) / "model"
            model = write(*CASES[name], folder)
            truth = logits(model)
            for module in model.modules():
                module._forward_pre_hooks.clear()
                module._forward_hooks.clear()
            known[name] = (folder, truth, logits(model))
        return known[name]

    return make


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(IDS).logits.double()
    return result


def load(folder: Path, **options: Any) -> Any:
    return qd.load(folder, **{"dtype": torch.float32, **options})


def distance(left: torch.Tensor, right: torch.Tensor) -> float:
    return float((left - right).norm() / right.norm())


def transforms(model: nn.Module) -> dict[str, OnlineTransform]:
    return {name: module for name, module in model.named_modules() if isinstance(module, OnlineTransform)}


def stored(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def changed(folder: Path, target: Path, change: Callable[[dict[str, torch.Tensor], dict[str, Any]], None]) -> Path:
    """A copy whose tensors and quantization config ``change`` has edited."""
    shutil.copytree(folder, target)
    tensors, config = stored(target), json.loads((target / "config.json").read_text())
    change(tensors, config["quantization_config"])
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    (target / "config.json").write_text(json.dumps(config))
    return target
