"""What the torch halves of the nvfp4 and mx schemes share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...numerics.microfloats import pack_floats, unpack_floats
from ...numerics.microscaling import dequantize_groups
from ...registry.errors import CheckpointError
from ...registry.facts import LayerFacts
from ...registry.operands import Operands
from ...registry.scheme import LayerShape
from ..stored import weights_of
from .linear import chunks, compute_dtype, finish
from .values import extras, stored_bias, take, take_matrix

_KNOWN = frozenset(
    {"weight", "weight_packed", "weight_scale", "weight_global_scale", "input_global_scale", "bias"}
)  # fmt: skip


class MicroscalingNumerics(ABC):
    """y = x @ w.T + bias, w = q * s in groups along K, with x left alone or quantized."""

    def __init__(self, scheme_layer: LayerFacts) -> None:
        self.layer = scheme_layer
        self.weights = weights_of(scheme_layer)

    @abstractmethod
    def quantized_inputs(self, x: Tensor, operands: Operands) -> Tensor:
        """x [..., K] as the weight meets it: quantized and dequantized, or as it is."""

    @abstractmethod
    def _scales(self, tensors: Mapping[str, Any], grid: tuple[int, int], name: str) -> dict[str, Tensor | None]:
        """The operands' scales by field. Raises ``CheckpointError`` for unusable ones."""

    def operands(self, tensors: Mapping[str, Any], shape: LayerShape, name: str) -> Operands:
        """Raises ``CheckpointError`` for scales that are NaN or infinite, negative, or zero (a zero group scale of
        nvfp4 is one, unless all are)."""
        assert self.weights.group_size
        scales: dict[str, Any] = self._scales(tensors, (shape.n, shape.k // self.weights.group_size), name)
        return Operands(
            codes=self._codes(tensors, shape, name),
            bias=tensors.get("bias"),
            extra=extras(tensors, _KNOWN),
            **scales,
        )

    def stored(self, operands: Operands, shape: LayerShape) -> dict[str, Any]:
        bits = self.weights.num_bits
        tensors = dict(operands.extra)
        if bits == 8:
            tensors["weight"] = operands.codes
        else:
            tensors["weight_packed"] = pack_floats(operands.codes, bits)
        tensors["weight_scale"] = operands.scale
        if operands.global_scale is not None:
            tensors["weight_global_scale"] = operands.global_scale
        if operands.input_global_scale is not None:
            tensors["input_global_scale"] = operands.input_global_scale
        return {**tensors, **stored_bias(operands)}

    def dequantize(self, operands: Operands, dtype: Any | None = None) -> Tensor:
        return dequantize_groups(operands.codes, operands.scale, operands.global_scale, dtype=dtype)

    def forward(self, x: Tensor, operands: Operands) -> Tensor:
        """x [..., K] to [..., N]; the product in fp32 (fp64 for fp64 x), one rounding to x's dtype at the end."""
        compute = compute_dtype(x)
        seen = self.quantized_inputs(x, operands).to(compute)
        parts = [
            F.linear(
                seen,
                dequantize_groups(operands.codes[rows], operands.scale[rows], operands.global_scale, dtype=compute),
            )
            for rows in chunks(operands, self.weights)
        ]
        return finish(parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1), operands, x.dtype)

    def _codes(self, tensors: Mapping[str, Any], shape: LayerShape, name: str) -> Tensor:
        if self.weights.num_bits == 8:
            return take_matrix(tensors, "weight", name, shape, {torch.float8_e4m3fn})
        packed = take(tensors, "weight_packed", name)
        width = shape.k * self.weights.num_bits // 8
        if packed.dtype != torch.uint8 or tuple(packed.shape) != (shape.n, width):
            raise CheckpointError(
                "weight_packed has the wrong shape or dtype",
                layer=name,
                field="weight_packed",
                observed=f"{packed.dtype} {list(packed.shape)}",
                required=f"torch.uint8 {[shape.n, width]}",
                code="QD656",
            )
        return unpack_floats(packed, self.weights.num_bits)
