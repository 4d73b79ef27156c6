"""Embeddings and heads of SGLang on quantdispatch's kernels.

SGLang pads a rank's rows, so that there are more of them than the checkpoint has: heads give zeros there, which SGLang
cuts off, and embeddings are never asked for them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module

from quantdispatch.engines.adapters.parts import TablePart
from quantdispatch.numerics.rows import row_args
from quantdispatch.registry.lazy import load_target
from quantdispatch.registry.scheme import Numerics

from .linear import QuantDispatchLinearMethod


class QuantDispatchHeadMethod(QuantDispatchLinearMethod):
    """A quantized head with a weight of its own."""

    def apply(self, layer: Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        y = _padded(super().apply(layer, x), layer)
        return y if bias is None else y + bias


class QuantDispatchEmbeddingMethod(QuantDispatchLinearMethod):
    """A quantized embedding, which may be the head as well: SGLang then computes logits with the same module."""

    part_class = TablePart

    def create_weights(self, layer: Module, *args: Any, **kwargs: Any) -> None:
        super().create_weights(layer, *args, **kwargs)
        scheme = self.layers[0].scheme_object
        assert scheme is not None and scheme.layer.weights is not None
        rows = replace(scheme.layer, weights=row_args(scheme.layer.weights))
        self._rows = cast(Numerics, load_target(scheme.numerics)(rows))

    def embedding(self, layer: Module, input_: Tensor) -> Tensor:
        """Token numbers [...] of this rank's vocabulary to rows [..., K]."""
        impl, state = self._kernel(layer)
        if not hasattr(impl, "rows"):
            return cast(Tensor, impl.apply(input_, state))
        width = self.shards.k
        if input_.numel() == 0:
            return torch.empty(*input_.shape, width, dtype=self.dtype, device=input_.device)
        rows = self._rows.dequantize(impl.rows(input_.reshape(-1), state)).to(self.dtype)
        return cast(Tensor, rows.reshape(*input_.shape, width))

    def apply(self, layer: Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [..., K] times the transpose of the rows."""
        impl, state = self._kernel(layer)
        if hasattr(impl, "rows"):
            y = cast(Tensor, impl.apply(x, state))
        else:
            every = torch.arange(self.shards.partitions[0].count, device=x.device)
            y = F.linear(x, self.embedding(layer, every))
        y = _padded(y, layer)
        return y if bias is None else y + bias

    def _kernel(self, layer: Module) -> tuple[Any, dict[str, Tensor]]:
        impl, keys = self.kernels[0]
        return impl, {name: getattr(layer, key) for name, key in keys}


def _padded(y: Tensor, module: Any) -> Tensor:
    """[..., rows in the checkpoint] to [..., rows that SGLang counts on]."""
    missing = module.num_embeddings_per_partition - y.shape[-1]
    return F.pad(y, (0, missing)) if missing else y
