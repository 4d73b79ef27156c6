"""Torch half of ``w8a8_fp8`` and ``w8a16_fp8``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...numerics.activations import expand_groups, quantize_fp8
from ...numerics.weights import dequantize
from ...registry.facts import LayerFacts
from ...registry.operands import Operands
from ...registry.scheme import LayerShape
from ..stored import scale_grid, weights_of
from .linear import compute_dtype, finish, product
from .values import extras, stored_bias, stored_inputs, take_matrix, take_scale

_KNOWN = frozenset({"weight", "weight_scale", "input_scale", "bias"})


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
        static = self.layer.inputs is not None and not self.layer.inputs.dynamic
        return Operands(
            codes=take_matrix(tensors, "weight", name, shape, {torch.float8_e4m3fn}),
            scale=take_scale(tensors, "weight_scale", name, grid),
            input_scale=take_scale(tensors, "input_scale", name, (1,)) if static else None,
            bias=tensors.get("bias"),
            extra=extras(tensors, _KNOWN),
        )

    def stored(self, operands: Operands, shape: LayerShape) -> dict[str, Any]:
        scale = operands.scale.reshape(1) if self.weights.strategy == "tensor" else operands.scale
        named = {**operands.extra, "weight": operands.codes, "weight_scale": scale}
        return {**named, **stored_inputs(operands), **stored_bias(operands)}

    def dequantize(self, operands: Operands, dtype: Any | None = None) -> Tensor:
        return dequantize(operands.codes, operands.scale, None, self.weights, dtype=dtype)

    def forward(self, x: Tensor, operands: Operands) -> Tensor:
        """x [..., K] to [..., N]; the product and the scales in fp32, one rounding to x's dtype at the end."""
        compute = compute_dtype(x)
        inputs = self.layer.inputs
        if inputs is None:
            return finish(product(x.to(compute), operands, self.weights), operands, x.dtype)
        q, scale = quantize_fp8(x, inputs, operands.input_scale)
        if inputs.strategy == "group" and inputs.group_size:
            # a scale a group of columns cannot leave the sum
            scaled = q.to(compute) * expand_groups(scale, inputs.group_size, x.shape[-1])
            return finish(product(scaled, operands, self.weights), operands, x.dtype)
        return finish(product(q.to(compute), operands, self.weights) * scale, operands, x.dtype)
