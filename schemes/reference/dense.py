"""Torch half of ``dense``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...registry.facts import LayerFacts
from ...registry.operands import Operands
from ...registry.scheme import LayerShape
from .linear import compute_dtype, finish
from .values import extras, stored_bias, take_matrix

_KNOWN = frozenset({"weight", "bias"})
_FLOATS = {torch.bfloat16, torch.float16, torch.float32}


class DenseNumerics:
    """y = x @ weight.T + bias. ``Operands.codes`` is the weight as stored and ``scale`` is ``None``."""

    def __init__(self, scheme_layer: LayerFacts) -> None:
        self.layer = scheme_layer

    def operands(self, tensors: Mapping[str, Any], shape: LayerShape, name: str) -> Operands:
        """Values are not looked at: a dense weight may be anything."""
        weight = take_matrix(tensors, "weight", name, shape, _FLOATS)
        return Operands(codes=weight, scale=None, bias=tensors.get("bias"), extra=extras(tensors, _KNOWN))

    def stored(self, operands: Operands, shape: LayerShape) -> dict[str, Any]:
        return {**operands.extra, "weight": operands.codes, **stored_bias(operands)}

    def dequantize(self, operands: Operands, dtype: Any | None = None) -> Tensor:
        weight: Tensor = operands.codes
        return weight if dtype is None else weight.to(dtype)

    def forward(self, x: Tensor, operands: Operands) -> Tensor:
        """x [..., K] to [..., N], the product in fp32."""
        compute = compute_dtype(x)
        return finish(F.linear(x.to(compute), operands.codes.to(compute)), operands, x.dtype)
