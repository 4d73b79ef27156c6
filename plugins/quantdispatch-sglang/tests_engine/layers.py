"""SGLang's modules that load quantized layers made up at random."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang.srt.layers import quantization
from stored_layers import Args, Stored, config, inputs, stored, weights
from torch import Tensor

__all__ = ["Args", "Stored", "close", "config", "finish", "inputs", "load", "sglang_config", "stored", "weights"]


def sglang_config(block: Mapping[str, Any], mapping: Mapping[str, list[str]] | None = None) -> Any:
    """As SGLang's model loader makes it."""
    made = quantization.get_quantization_config("compressed-tensors")
    return made.from_config({**block, "packed_modules_mapping": dict(mapping or {})})


def load(module: Any, tensors: Mapping[str, Tensor], *shard: Any) -> None:
    """As models do: parameters are found by name, and asked for their loader."""
    parameters = dict(module.named_parameters())
    for name, tensor in tensors.items():
        parameters[name].weight_loader(parameters[name], tensor, *shard)


def finish(module: Any) -> Any:
    module.quant_method.process_weights_after_loading(module)
    return module


def close(observed: Tensor, expected: Tensor, tolerance: float = 2e-5) -> None:
    error = float((observed - expected).norm() / expected.norm())
    assert observed.shape == expected.shape and error < tolerance, f"relative error {error:.2e}"
