"""Embeddings and heads of SGLang on quantdispatch's kernels."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import Module

from quantdispatch.engines.adapters.vocabulary import PartitionedHead, PartitionedTable

from .linear import QuantDispatchLinearMethod


class QuantDispatchHeadMethod(PartitionedHead, QuantDispatchLinearMethod):
    """A quantized head with a weight of its own."""


class QuantDispatchEmbeddingMethod(PartitionedTable, QuantDispatchLinearMethod):
    """A quantized embedding, which may be the head as well: SGLang then computes logits with the same module."""

    def create_weights(self, layer: Module, *args: Any, **kwargs: Any) -> None:
        super().create_weights(layer, *args, **kwargs)
        self.read_rows()

    def apply(self, layer: Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [..., K] times the transpose of the rows."""
        y = self.project(layer, x)
        return y if bias is None else y + bias
