"""``reference/embedding``: rows of a quantized matrix, looked up by index."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...numerics.rows import row_args, select_rows
from ...registry.errors import QuantDispatchError
from ...registry.facts import KernelSpec, LayerFacts
from .linear import ReferenceKernel


class ReferenceEmbedding(ReferenceKernel):
    """Row i of what compressed-tensors decompresses, for index i, in the dtype of the activations."""

    def __init__(self, spec: KernelSpec) -> None:
        if spec.weights is None:
            raise QuantDispatchError("a quantized embedding has weight args", field="weights", observed=None)
        super().__init__(spec)
        self.dtype: torch.dtype = getattr(torch, spec.dtype)
        self.weights = spec.weights

    @staticmethod
    def facts(spec: KernelSpec) -> LayerFacts:
        weights = None if spec.weights is None else row_args(spec.weights)
        return LayerFacts(spec.kind, None, weights, spec.inputs, spec.outputs)

    def apply(self, x: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """Indices x, integers [...], to [..., K]. Only these rows are dequantized. Raises ``IndexError`` for an index
        outside of the vocabulary."""
        rows = select_rows(self.unpack(state), self.weights, x.reshape(-1))
        if x.numel() == 0:
            return torch.empty(*x.shape, rows.codes.shape[1], dtype=self.dtype, device=rows.codes.device)
        weight: Tensor = self.numerics.dequantize(rows).to(self.dtype)
        return weight.reshape(*x.shape, weight.shape[1])
