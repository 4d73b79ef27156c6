"""Torch half of the integer schemes: ``wNa16_int``, ``wNa8_int``, ``wNa4_int``, ``wNa8o8_int`` and ``w4a8_fp8``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...numerics.packing import pack_int32, unpack_int32
from ...numerics.weights import dequantize
from ...registry.errors import CheckpointError
from ...registry.facts import LayerFacts
from ...registry.operands import Operands
from ...registry.scheme import LayerShape
from ..integer import is_packed, packs_zero_points
from ..stored import scale_grid, weights_of
from .linear import quantized_linear
from .values import (
    check_codes,
    extras,
    stored_activations,
    stored_bias,
    take,
    take_matrix,
    take_scale,
    take_static,
    take_zero_point,
)

_KNOWN = frozenset(
    {"weight_packed", "weight", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx", "bias"}
)


class IntegerNumerics:
    """y = x @ ((q - z) * s).T + bias, with x left alone or quantized to (qx - zx) * sx, or to float8 qx * sx, and y
    left alone or quantized to (qy - zy) * sy."""

    def __init__(self, scheme_layer: LayerFacts) -> None:
        self.layer = scheme_layer
        self.weights = weights_of(scheme_layer)

    def operands(self, tensors: Mapping[str, Any], shape: LayerShape, name: str) -> Operands:
        """Raises ``CheckpointError`` for scales that are not finite and above zero, zero points and codes out of the
        range of their bits, and a g_idx that does not give each group its share of columns."""
        grid = self._grid(shape)
        operands = Operands(
            codes=self._codes(tensors, shape, name),
            scale=take_scale(tensors, "weight_scale", name, grid),
            bias=tensors.get("bias"),
            extra=extras(tensors, _KNOWN, self.layer),
        )
        if not self.weights.symmetric:
            operands.zero_point = self._zero_point(tensors, shape, name, grid)
        if self.weights.actorder == "group":
            operands.g_idx = self._g_idx(tensors, grid[1], name)
        operands.input_scale, operands.input_zero_point = take_static(tensors, "input", name, self.layer.inputs)
        operands.output_scale, operands.output_zero_point = take_static(tensors, "output", name, self.layer.outputs)
        return operands

    def stored(self, operands: Operands, shape: LayerShape) -> dict[str, Any]:
        """Dense packing whatever the file had: a checkpoint saved from this is one of compressed-tensors >= 0.18."""
        bits = self.weights.num_bits
        tensors: dict[str, Any] = dict(operands.extra)
        scale, zero_point = operands.scale, operands.zero_point
        if self.weights.strategy == "tensor":
            scale = scale.reshape(1)
            zero_point = None if zero_point is None else zero_point.reshape(1)
        if is_packed(self.layer):
            tensors["weight_packed"] = pack_int32(operands.codes, bits)
            tensors["weight_shape"] = torch.tensor([shape.n, shape.k], dtype=torch.int64, device=scale.device)
        else:
            tensors["weight"] = operands.codes
        tensors["weight_scale"] = scale
        if zero_point is not None:
            packs = packs_zero_points(self.layer)
            tensors["weight_zero_point"] = pack_int32(zero_point, bits, axis=0) if packs else zero_point
        if operands.g_idx is not None:
            tensors["weight_g_idx"] = operands.g_idx
        elif self.weights.actorder == "group":
            # compressed-tensors' own mark for "columns are in order"
            tensors["weight_g_idx"] = torch.full((shape.k,), -1, dtype=torch.int32, device=scale.device)
        return {**tensors, **stored_activations(operands), **stored_bias(operands)}

    def dequantize(self, operands: Operands, dtype: Any | None = None) -> Tensor:
        return dequantize(
            operands.codes, operands.scale, operands.zero_point, self.weights, g_idx=operands.g_idx, dtype=dtype
        )

    def forward(self, x: Tensor, operands: Operands) -> Tensor:
        """x [..., K] to [..., N]; the product and the scales in fp32, one rounding to x's dtype at the end."""
        return quantized_linear(x, operands, self.layer)

    def _grid(self, shape: LayerShape) -> tuple[int, ...]:
        shapes, _ = scale_grid(self.weights, shape)
        return (1, 1) if self.weights.strategy == "tensor" else shapes[0]

    def _codes(self, tensors: Mapping[str, Any], shape: LayerShape, name: str) -> Tensor:
        if not is_packed(self.layer):
            codes = take_matrix(tensors, "weight", name, shape, {torch.int8})
            check_codes(codes, "weight", name, self.weights.num_bits)
            return codes
        return self._unpack(tensors, "weight_packed", name, shape.k, 1, shape.packing)

    def _zero_point(self, tensors: Mapping[str, Any], shape: LayerShape, name: str, grid: tuple[int, ...]) -> Tensor:
        if not packs_zero_points(self.layer):
            return take_zero_point(tensors, "weight_zero_point", name, grid, self.weights.num_bits)
        return self._unpack(tensors, "weight_zero_point", name, shape.n, 0, shape.packing)

    def _unpack(
        self, tensors: Mapping[str, Any], tensor: str, name: str, size: int, axis: int, packing: str | None
    ) -> Tensor:
        words = take(tensors, tensor, name)
        try:
            return unpack_int32(words, self.weights.num_bits, size, axis=axis, layout=packing or "dense")
        except ValueError as error:
            raise CheckpointError(
                f"{tensor} cannot be unpacked: {error}", layer=name, field=tensor, observed=str(error),
                required=f"int32 words of {self.weights.num_bits}-bit values", code="QD658",
            ) from None  # fmt: skip

    def _g_idx(self, tensors: Mapping[str, Any], groups: int, name: str) -> Tensor | None:
        g_idx = take(tensors, "weight_g_idx", name).to(torch.int64)
        if bool((g_idx == -1).all()):
            return None
        # Anything but equal shares means that the index belongs to another group size, or to another layer.
        in_range = bool(((g_idx >= 0) & (g_idx < groups)).all())
        if not in_range or bool((torch.bincount(g_idx, minlength=groups) != g_idx.numel() // groups).any()):
            raise CheckpointError(
                "weight_g_idx does not give every group its share of columns",
                layer=name,
                field="weight_g_idx",
                observed=f"{int(g_idx.min())}..{int(g_idx.max())} over {g_idx.numel()} columns",
                required=f"each of 0..{groups - 1} {g_idx.numel() // groups} times, or -1 everywhere",
                code="QD658",
            )
        return g_idx.to(torch.int32)
