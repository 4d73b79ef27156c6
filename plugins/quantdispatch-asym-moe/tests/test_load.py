"""Asymmetric experts from file to logits, against the weights that compressed-tensors decompresses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from demo_models.moe import LINEARS, tiny_moe
from demo_models.variants import Group
from safetensors.torch import load_file

import quantdispatch as qd
from quantdispatch.engines.experts import QuantExperts
from quantdispatch.testing import registry_with, using_registry

PLUGIN = "quantdispatch_asym_moe"
ARGS: dict[str, dict[str, Any]] = {
    "int4 group": {"num_bits": 4, "strategy": "group", "group_size": 32},
    "int4 channel": {"num_bits": 4, "strategy": "channel"},
    "int8 group": {"num_bits": 8, "strategy": "group", "group_size": 32},
    "int8 channel": {"num_bits": 8, "strategy": "channel"},
}


def checkpoint(folder: Path, args: dict[str, Any]) -> Path:
    group = Group({"type": "int", "symmetric": False, **args}, format="pack-quantized")
    return tiny_moe(folder, {"group_0": group})


@pytest.mark.parametrize("name", ARGS)
def test_without_the_plugin_the_error_names_it(name: str, tmp_path: Path) -> None:
    with using_registry(registry_with()):
        plan = qd.plan(checkpoint(tmp_path / "c", ARGS[name]), strict=False)
    errors = {layer.name: layer.error for layer in plan.layers.values() if layer.kind == "moe"}
    assert len(errors) == 2 * 4 * 3
    for error in errors.values():
        assert isinstance(error, qd.NoSchemeFound) and "quantdispatch-asym-moe" in str(error.remedy)
    assert all(layer.error is None for layer in plan.layers.values() if layer.kind != "moe")


@pytest.mark.parametrize("backend", [None, "reference"])
@pytest.mark.parametrize("name", ARGS)
def test_logits_are_those_of_the_decompressed_weights(name: str, backend: str | None, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", ARGS[name])
    tokens = torch.arange(7, 39).reshape(2, 16)
    with using_registry(registry_with(PLUGIN)):
        model = qd.load(folder, dtype=torch.float32, backend=backend)
        experts = [module for module in model.modules() if isinstance(module, QuantExperts)]
        assert len(experts) == 2
        with torch.no_grad():
            observed = model(tokens).logits
        native = any(
            getattr(module, "kernel", None) and module.kernel.name == "cpu/native" for module in model.modules()
        )
        assert all((module._fused is not None) == native for module in experts), "all experts in one call"
        _decompress(model, load_file(folder / "model.safetensors"), ARGS[name])
        with torch.no_grad():
            expected = model(tokens).logits
    assert (observed - expected).norm() < 2e-4 * expected.norm()


def _decompress(model: Any, tensors: dict[str, torch.Tensor], args: dict[str, Any]) -> None:
    """Put what compressed-tensors makes of the file in place of every packed layer."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(type="int", symmetric=False, **args))
    compressor: Any = BaseCompressor.get_value_from_registry("pack-quantized")
    for name in {key.removesuffix(".weight_packed") for key in tensors if key.endswith(".weight_packed")}:
        assert LINEARS.search(name)
        state = {key.rpartition(".")[2]: value for key, value in tensors.items() if key.rpartition(".")[0] == name}
        state["weight_scale"] = state["weight_scale"].float()
        weight = compressor.decompress(state, scheme)["weight"]
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        linear.weight = torch.nn.Parameter(weight, requires_grad=False)
        model.set_submodule(name, linear)
