"""The empty packed module that takes the place of a model's own linear layer, and its way back to a dense one."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ...registry.errors import CheckpointError
from ...registry.plan import Resolution
from ..dense import restore
from ..embedding import QuantEmbedding, TiedHead
from ..experts import QuantExperts
from ..modules import QuantLinear
from ..packed import PackedLayer
from ..tensors import dtype_name, read_tensor
from ..transforms import plain, transforms_of
from .attention import install_queries, uninstall_queries
from .cache import CHILD, AttentionCache


def packed_linear(linear: nn.Linear, layer: Resolution, dtype: torch.dtype, backend: str | None) -> QuantLinear:
    """For ``linear`` of the model, which ``layer`` of the checkpoint belongs to. Raises ``CheckpointError`` where the
    two disagree about shape or bias."""
    assert layer.scheme_object is not None and layer.shape is not None
    tensors = set(layer.tensors)
    if (linear.bias is not None) != ("bias" in tensors) and _only_pads(layer):
        tensors.discard("bias")
    spec = layer.scheme_object.kernel_spec(layer.shape, dtype_name(dtype), tensors=frozenset(tensors))
    if layer.spec is not None:
        own = layer.spec
        spec = replace(spec, allow=own.allow, measured=own.measured, measured_by=own.measured_by)
    if (linear.out_features, linear.in_features) != (layer.shape.n, layer.shape.k):
        raise CheckpointError(
            "the stored layer is of another shape than the model's", layer=layer.name, field="weight",
            observed=[layer.shape.n, layer.shape.k], required=[linear.out_features, linear.in_features], code="QD670",
        )  # fmt: skip
    if (linear.bias is not None) != spec.bias:
        raise CheckpointError(
            f"tensor {layer.name}.bias is " + ("left over: the model's layer has none" if spec.bias else "missing"),
            layer=layer.name, field=f"{layer.name}.bias", observed="a bias" if spec.bias else "none",
            required="none" if spec.bias else "a bias", code="QD671",
        )  # fmt: skip
    return QuantLinear(layer.name, layer.scheme_object, layer.shape, spec, backend=backend)


def _only_pads(layer: Resolution) -> bool:
    """Is the stored bias one that adds nothing, in a format whose writers give every layer a bias?"""
    padded = layer.scheme_object is not None and layer.scheme_object.may_pad_bias and "bias" in layer.tensors
    return padded and not bool(read_tensor(layer.tensors["bias"]).any())


def place_cache(model: Any, runtime: str, layer: Resolution, dtype: torch.dtype, backend: str | None) -> str:
    """Give the attention module ``runtime`` an empty :class:`QuantCache`, and return that one's name. Raises
    ``CheckpointError`` for attention that none can be put into."""
    assert layer.scheme_object is not None
    if getattr(model.config, "is_encoder_decoder", False):
        raise CheckpointError(
            "a quantized cache serves decoders, not the two caches of an encoder-decoder", layer=layer.name,
            field="kv_cache_scheme", observed=type(model).__name__, required="a decoder", code="QD674",
        )  # fmt: skip
    spec = layer.scheme_object.kernel_spec(None, dtype_name(dtype), tensors=frozenset(layer.tensors))
    attention = model.get_submodule(runtime)
    cache = AttentionCache(layer.name, layer.scheme_object, spec, backend=backend)
    cache.install(attention)
    if "q" in cache.parts:
        install_queries(attention, cache)
    return f"{runtime}.{CHILD}"


def check_heads(model: nn.Module, cache: AttentionCache, runtime: str) -> None:
    """Raises ``CheckpointError`` when scales by head are not of the model's heads."""
    config: Any = getattr(model.get_submodule(runtime.rpartition(".")[0]), "config", None)
    queries = getattr(config, "num_attention_heads", None)
    cache.check_heads(getattr(config, "num_key_value_heads", None) or queries, queries)


def refuse_tied(layer: Resolution, runtime: str, tied: Container[str]) -> None:
    """Raises ``CheckpointError`` when the model would give the layer's weight to another module too."""
    if f"{runtime}.weight" in tied:
        raise CheckpointError(
            "the layer is stored quantized, and the config ties its weight to the embeddings", layer=layer.name,
            field="tie_word_embeddings", observed=True, required=False,
            remedy="set tie_word_embeddings to false in config.json", code="QD675",
        )  # fmt: skip


def reserve(packed: PackedLayer, layer: Resolution) -> None:
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
    """Every packed module of ``model`` becomes the dense one that it stands for; caches hold what they are given."""
    restore(model)
    tables: dict[int, nn.Embedding] = {}
    # whatever holds others comes before them
    for kind in (QuantExperts, QuantEmbedding, TiedHead, QuantLinear, AttentionCache):
        for name, module in list(model.named_modules()):
            if not isinstance(module, kind):
                continue
            if isinstance(module, AttentionCache):
                attention = model.get_submodule(name.rpartition(".")[0])
                uninstall_queries(attention)
                module.uninstall(attention)
            elif isinstance(module, TiedHead):
                model.set_submodule(name, module.dequantize(tables[id(module.embedding)]))
            elif isinstance(module, QuantEmbedding):
                tables[id(module)] = module.dequantize(dtype)
                model.set_submodule(name, tables[id(module)])
            elif isinstance(module, (QuantExperts, QuantLinear)):
                model.set_submodule(name, module.dequantize(dtype))
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and transforms_of(module):
            model.set_submodule(name, plain(module, dtype))
