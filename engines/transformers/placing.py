"""The empty packed module that takes the place of a model's own linear layer."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch import nn

from ...registry.errors import CheckpointError
from ...registry.plan import Resolution
from ..experts import QuantExperts
from ..modules import QuantLinear
from ..tensors import dtype_name


def packed_linear(linear: nn.Linear, layer: Resolution, dtype: torch.dtype, backend: str | None) -> QuantLinear:
    """For ``linear`` of the model, which ``layer`` of the checkpoint belongs to. Raises ``CheckpointError`` where the
    two disagree about shape or bias."""
    assert layer.scheme_object is not None and layer.shape is not None
    spec = layer.scheme_object.kernel_spec(layer.shape, dtype_name(dtype), tensors=frozenset(layer.tensors))
    if (linear.out_features, linear.in_features) != (layer.shape.n, layer.shape.k):
        raise CheckpointError(
            "the stored layer is of another shape than the model's", layer=layer.name,
            observed=[layer.shape.n, layer.shape.k], required=[linear.out_features, linear.in_features],
        )  # fmt: skip
    if (linear.bias is not None) != spec.bias:
        raise CheckpointError(
            f"tensor {layer.name}.bias is " + ("left over: the model's layer has none" if spec.bias else "missing"),
            layer=layer.name, field=f"{layer.name}.bias",
        )  # fmt: skip
    return QuantLinear(layer.name, layer.scheme_object, layer.shape, spec, backend=backend)


def refuse_tied(layer: Resolution, runtime: str, tied: Container[str]) -> None:
    """Raises ``CheckpointError`` when the model would give the layer's weight to another module too."""
    if f"{runtime}.weight" in tied:
        raise CheckpointError(
            "the layer is stored quantized, and the config ties its weight to the embeddings", layer=layer.name,
            field="tie_word_embeddings", observed=True, required=False,
            remedy="set tie_word_embeddings to false in config.json",
        )  # fmt: skip


def reserve(packed: QuantLinear, layer: Resolution) -> None:
    """Give an empty module a size on no device: transformers divides a model among devices by size."""
    size = sum(entry.nbytes for entry in layer.tensors.values())
    packed.register_buffer("placeholder", torch.empty(size, dtype=torch.uint8, device="meta"), persistent=False)


@torch.no_grad()
def fill_dense(linear: nn.Linear, tensors: dict[str, Any], device: torch.device) -> None:
    """An unquantized expert among packed ones, which transformers cannot load; in the dtype of the activations."""
    for name, tensor in tensors.items():
        dtype = getattr(linear, name).dtype
        setattr(linear, name, nn.Parameter(tensor.to(device, dtype), requires_grad=False))


def make_dense(model: nn.Module, dtype: torch.dtype | None = None) -> None:
    """Every packed module of ``model`` becomes the dense one that it stands for."""
    for name, module in list(model.named_modules()):
        if isinstance(module, QuantExperts):
            model.set_submodule(name, module.dequantize(dtype))
    for name, module in list(model.named_modules()):
        if isinstance(module, QuantLinear):
            model.set_submodule(name, module.dequantize(dtype))
