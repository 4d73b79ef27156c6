"""Embeddings and heads of vLLM on quantdispatch's kernels: quantized ones, and heads that share a quantized embedding.

vLLM pads a rank's rows, so that there are more of them than the checkpoint has: heads give zeros there, which vLLM cuts
off, and embeddings are never asked for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

from quantdispatch.engines.adapters.parts import Bound, TablePart, bind_dense
from quantdispatch.numerics.rows import row_args
from quantdispatch.registry.lazy import load_target
from quantdispatch.registry.scheme import Numerics

from .linear import QuantDispatchLinearMethod


class QuantDispatchHeadMethod(QuantDispatchLinearMethod):
    """A quantized head with a weight of its own."""

    def apply(self, layer: Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        y = padded(super().apply(layer, x), layer)
        return y if bias is None else y + bias

    def tie_weights(self, layer: Module, embed_tokens: Module) -> Module:
        return tie(self, layer, embed_tokens)


class QuantDispatchEmbeddingMethod(QuantDispatchLinearMethod):
    """A quantized embedding. Its kernel may compute a tied head as well."""

    part_class = TablePart

    def create_weights(self, layer: Module, *args: Any, **kwargs: Any) -> None:
        super().create_weights(layer, *args, **kwargs)
        resolved = self.layers[0]
        scheme = resolved.scheme_object
        assert scheme is not None and scheme.layer.weights is not None
        rows = replace(scheme.layer, weights=row_args(scheme.layer.weights))
        self._rows = cast(Numerics, load_target(scheme.numerics)(rows))

    def embedding(self, layer: Module, input_: Tensor) -> Tensor:
        impl, state = self._kernel(layer)
        if not hasattr(impl, "rows"):
            return cast(Tensor, impl.apply(input_, state))
        width = impl.k
        if input_.numel() == 0:
            return torch.empty(*input_.shape, width, dtype=self.dtype)
        rows = self._rows.dequantize(impl.rows(input_.reshape(-1), state)).to(self.dtype)
        return cast(Tensor, rows.reshape(*input_.shape, width))

    def project(self, layer: Module, x: Tensor) -> Tensor:
        """x [..., K] times the transpose of the rows, for a tied head."""
        impl, state = self._kernel(layer)
        if hasattr(impl, "rows"):
            return padded(cast(Tensor, impl.apply(x, state)), layer)
        index = torch.arange(self.shards.partitions[0].count)
        return padded(F.linear(x, self.embedding(layer, index)), layer)

    def _kernel(self, layer: Module) -> tuple[Any, Mapping[str, Tensor]]:
        impl, keys = self.kernels[0]
        return impl, {name: getattr(layer, key) for name, key in keys}


class TiedHeadMethod(UnquantizedEmbeddingMethod):
    """A head without a weight of its own, of an embedding that quantdispatch computes."""

    def process_weights_after_loading(self, layer: Module) -> None:
        """There is nothing to pack."""

    def apply(self, layer: Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        embedding = layer.__dict__["quantdispatch_embedding"]
        y = embedding.quant_method.project(embedding, x)
        return y if bias is None else y + bias


class DenseHeadMethod(UnquantizedEmbeddingMethod):
    """A head left dense, on the kernel that is faster than what torch and vLLM have on this processor."""

    def process_weights_after_loading(self, layer: Module) -> None:
        bound: Bound = bind_dense(layer.weight.data)
        self._impl = bound.impl

    def apply(self, layer: Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        y = cast(Tensor, self._impl.apply(x, {"weight": layer.weight}))
        return y if bias is None else y + bias

    def tie_weights(self, layer: Module, embed_tokens: Module) -> Module:
        return tie(self, layer, embed_tokens)


def tie(method: Any, head: Module, embedding: Module) -> Module:
    """The head computes with the embedding's rows, whoever holds those."""
    if isinstance(getattr(embedding, "quant_method", None), QuantDispatchEmbeddingMethod):
        for name in list(head._parameters):
            if name != "bias":
                delattr(head, name)
        # not a child: the embedding's tensors are its own
        head.__dict__["quantdispatch_embedding"] = embedding
        head.quant_method = TiedHeadMethod()
        return head
    if not isinstance(method, DenseHeadMethod):
        for name in list(head._parameters):
            if name != "bias":
                delattr(head, name)
        head.quant_method = DenseHeadMethod()
    head.weight = embedding.weight
    return head


def padded(y: Tensor, module: Any) -> Tensor:
    """[..., rows in the checkpoint] to [..., rows that vLLM counts on]."""
    missing = module.num_embeddings_per_partition - y.shape[-1]
    return F.pad(y, (0, missing)) if missing else y
