"""Torch half of ``kv_fp8``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...numerics.activations import FP8_MAX
from ...numerics.widening import float8_to_float32
from ...registry.errors import CheckpointError
from ...registry.facts import LayerFacts
from ...registry.operands import Operands
from ...registry.scheme import LayerShape
from ..kv_fp8 import SPELLINGS, KVFp8, spelling
from .values import extras, take_scale

_SCALES = frozenset(name for names in SPELLINGS.values() for name in names)


class KVFp8Numerics:
    """states ~ codes * scale, codes = e4m3(clamp(states / scale, -448, 448)), one scale in all or one a head."""

    def __init__(self, scheme_layer: LayerFacts) -> None:
        self.layer = scheme_layer
        self.scheme = KVFp8(scheme_layer)

    def operands(self, tensors: Mapping[str, Any], shape: LayerShape | None, name: str) -> Operands:
        """Scales of keys, values and, where they are stored, queries. Raises ``CheckpointError`` for one that is
        missing or not finite and above zero, and for a zero point that is not zero."""
        parts = SPELLINGS if "q_scale" in tensors else self.scheme.parts
        scales = {f"{part}_scale": self._scale(tensors, part, name) for part in parts}
        for local, tensor in tensors.items():
            if local.endswith("zero_point") and (stray := _not_zero(tensor)) is not None:
                raise CheckpointError(
                    "a symmetric cache has a zero point",
                    layer=name,
                    field=local,
                    observed=stray,
                    required="zeros",
                    code="QD658",
                )
        return Operands(codes=None, scale=None, extra=extras(tensors, _SCALES), **scales)

    def stored(self, operands: Operands, shape: LayerShape | None) -> dict[str, Any]:
        """In the present spelling, whatever the file had."""
        scales = {name: getattr(operands, name) for name in ("k_scale", "v_scale", "q_scale")}
        return {**operands.extra, **{name: scale for name, scale in scales.items() if scale is not None}}

    def quantize(self, part: str, states: Tensor, operands: Operands) -> Tensor:
        """``part`` ``"k"``, ``"v"`` or ``"q"``; states [..., heads, length, head_dim] to float8_e4m3fn of that shape.
        In fp32; NaN stays NaN."""
        scaled = states.to(torch.float32) / _scale_of(operands, part)
        return scaled.clamp_(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)

    def dequantize(self, part: str, codes: Tensor, operands: Operands, dtype: torch.dtype) -> Tensor:
        """The inverse: codes times scale in fp32, rounded once to ``dtype``."""
        return float8_to_float32(codes).mul_(_scale_of(operands, part)).to(dtype)

    def _scale(self, tensors: Mapping[str, Any], part: str, name: str) -> Tensor:
        local = spelling(part, tensors, name)
        by_head = self.scheme.args.strategy == "attn_head"
        return take_scale(tensors, local, name, (tensors[local].numel(), 1, 1) if by_head else (1,))


def _not_zero(zero_point: Tensor) -> float | None:
    wide = zero_point.to(torch.float32)
    found = wide[wide != 0]
    return float(found[0]) if found.numel() else None


def _scale_of(operands: Operands, part: str) -> Tensor:
    scale: Tensor | None = getattr(operands, f"{part}_scale")
    if scale is None:
        raise ValueError(f"the layer has no scale for {part}")
    return scale.to(torch.float32)
