"""Embeddings and heads of an engine on quantdispatch's kernels.

Engines pad a rank's rows, so that there are more of them than the checkpoint has: heads give zeros there, which are cut
off, and embeddings are never asked for them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module

from ...numerics.rows import row_args
from ...registry.lazy import load_target
from ...registry.scheme import Numerics
from .linear import PartitionedLinear
from .parts import TablePart


class PartitionedHead(PartitionedLinear):
    """A quantized head with a weight of its own."""

    def apply(self, layer: Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [..., K] to [..., rows that the engine counts on]."""
        y = padded(super().apply(layer, x), layer)
        return y if bias is None else y + bias


class PartitionedTable(PartitionedLinear):
    """A quantized embedding. Its kernel may compute a tied head as well."""

    part_class = TablePart

    def read_rows(self) -> None:
        """Be ready to dequantize rows that a kernel picks: called when ``layers`` is known."""
        scheme = self.layers[0].scheme_object
        assert scheme is not None and scheme.layer.weights is not None
        rows = replace(scheme.layer, weights=row_args(scheme.layer.weights))
        self._rows = cast(Numerics, load_target(scheme.numerics)(rows))

    def embedding(self, layer: Module, input_: Tensor) -> Tensor:
        """Token numbers [...] of this rank's vocabulary to rows [..., K]."""
        impl: Any = self.kernels[0][0]
        state = self.state(layer, 0)
        if not hasattr(impl, "rows"):
            return cast(Tensor, impl.apply(input_, state))
        width = self.shards.k
        if input_.numel() == 0:
            return torch.empty(*input_.shape, width, dtype=self.dtype, device=input_.device)
        rows = self._rows.dequantize(impl.rows(input_.reshape(-1), state)).to(self.dtype)
        return cast(Tensor, rows.reshape(*input_.shape, width))

    def project(self, layer: Module, x: Tensor) -> Tensor:
        """x [..., K] times the transpose of the rows, for a tied head: [..., rows that the engine counts on]."""
        impl = self.kernels[0][0]
        if hasattr(impl, "rows"):
            return padded(cast(Tensor, impl.apply(x, self.state(layer, 0))), layer)
        every = torch.arange(self.shards.partitions[0].count, device=x.device)
        return padded(F.linear(x, self.embedding(layer, every)), layer)


def padded(y: Tensor, module: Any) -> Tensor:
    """[..., rows in the checkpoint] to [..., rows that the engine counts on]."""
    missing = module.num_embeddings_per_partition - y.shape[-1]
    return F.pad(y, (0, missing)) if missing else y
