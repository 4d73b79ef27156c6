"""Embeddings and heads of vLLM: quantized ones, and heads that share a quantized embedding."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor
from torch.nn import Module
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

from quantdispatch.engines.adapters.parts import Bound, bind_dense
from quantdispatch.engines.adapters.vocabulary import PartitionedHead, PartitionedTable

from .linear import QuantDispatchLinearMethod


class QuantDispatchHeadMethod(PartitionedHead, QuantDispatchLinearMethod):
    """A quantized head with a weight of its own."""

    def tie_weights(self, layer: Module, embed_tokens: Module) -> Module:
        return tie(self, layer, embed_tokens)


class QuantDispatchEmbeddingMethod(PartitionedTable, QuantDispatchLinearMethod):
    """A quantized embedding. Its kernel may compute a tied head as well."""

    def create_weights(self, layer: Module, *args: Any, **kwargs: Any) -> None:
        super().create_weights(layer, *args, **kwargs)
        self.read_rows()


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
