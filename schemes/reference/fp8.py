"""Torch half of ``w8a8_fp8`` and ``w8a16_fp8``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...numerics.weights import dequantize
from ...registry.facts import LayerFacts
from ...registry.operands import Operands
from ...registry.scheme import LayerShape
from ..stored import scale_grid, weights_of
from .linear import quantized_linear
from .values import extras, stored_activations, stored_bias, take_matrix, take_scale, take_static

_KNOWN = frozenset({"weight", "weight_scale", "bias"})


class Fp8Numerics:
    """y = x @ (q * s).T + bias, with x left alone or quantized to qx * sx."""

    def __init__(self, scheme_layer: LayerFacts) -> None:
        self.layer = scheme_layer
        self.weights = weights_of(scheme_layer)

    def operands(self, tensors: Mapping[str, Any], shape: LayerShape, name: str) -> Operands:
        """Raises ``CheckpointError`` for scales that are not finite and above zero. NaN codes stay NaN weights, as
        compressed-tensors decompresses them."""
        shapes, _ = scale_grid(self.weights, shape)
        grid = (1, 1) if self.weights.strategy == "tensor" else shapes[0]
        return Operands(
            codes=take_matrix(tensors, "weight", name, shape, {torch.float8_e4m3fn}),
            scale=take_scale(tensors, "weight_scale", name, grid),
            input_scale=take_static(tensors, "input", name, self.layer.inputs)[0],
            bias=tensors.get("bias"),
            extra=extras(tensors, _KNOWN, self.layer),
        )

    def stored(self, operands: Operands, shape: LayerShape) -> dict[str, Any]:
        scale = operands.scale.reshape(1) if self.weights.strategy == "tensor" else operands.scale
        named = {**operands.extra, "weight": operands.codes, "weight_scale": scale}
        return {**named, **stored_activations(operands), **stored_bias(operands)}

    def dequantize(self, operands: Operands, dtype: Any | None = None) -> Tensor:
        return dequantize(operands.codes, operands.scale, None, self.weights, dtype=dtype)

    def forward(self, x: Tensor, operands: Operands) -> Tensor:
        """x [..., K] to [..., N]; the product and the scales in fp32, one rounding to x's dtype at the end."""
        return quantized_linear(x, operands, self.layer)
