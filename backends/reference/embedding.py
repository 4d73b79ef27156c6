"""``reference/embedding``: rows of a quantized matrix, looked up by index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ...numerics.row_codes import pack_rows, unpack_rows
from ...numerics.rows import row_args, select_rows
from ...registry.errors import QuantDispatchError
from ...registry.facts import KernelSpec, LayerFacts
from ...registry.operands import Operands
from .linear import ReferenceKernel


class ReferenceEmbedding(ReferenceKernel):
    """Row i of what compressed-tensors decompresses, for index i, in the dtype of the activations.

    State: that of the other reference kernels, but for ``codes``, which are packed row by row as in a file: a
    vocabulary is large, and a look-up reads little of it.
    """

    def __init__(self, spec: KernelSpec) -> None:
        if spec.weights is None:
            raise QuantDispatchError(
                "a quantized embedding has weight args", field="weights", observed="none", required="weight args",
                code="QD804",
            )  # fmt: skip
        if spec.k is None:
            raise QuantDispatchError(
                "a kernel is bound to an embedding of known shape", field="k", observed="unknown",
                required="its number of columns", code="QD804",
            )  # fmt: skip
        super().__init__(spec)
        self.dtype: torch.dtype = getattr(torch, spec.dtype)
        self.weights, self.k = spec.weights, spec.k

    @staticmethod
    def facts(spec: KernelSpec) -> LayerFacts:
        weights = None if spec.weights is None else row_args(spec.weights)
        return LayerFacts(spec.kind, None, weights, spec.inputs, spec.outputs)

    def pack(self, operands: Operands) -> dict[str, Tensor]:
        return super().pack(operands) | {"codes": pack_rows(operands.codes, self.weights)}

    def unpack(self, state: Mapping[str, Tensor]) -> Operands:
        return self._unpacked(super().unpack(state))

    def apply(self, x: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """Indices x, integers [...], to [..., K]. Only these rows are unpacked and dequantized. Raises ``IndexError``
        for an index outside of the vocabulary."""
        rows = select_rows(super().unpack(state), self.weights, x.reshape(-1))
        if x.numel() == 0:
            return torch.empty(*x.shape, self.k, dtype=self.dtype, device=rows.codes.device)
        weight: Tensor = self.numerics.dequantize(self._unpacked(rows)).to(self.dtype)
        return weight.reshape(*x.shape, self.k)

    def _unpacked(self, operands: Operands) -> Operands:
        return replace(operands, codes=unpack_rows(operands.codes, self.weights, self.k))
