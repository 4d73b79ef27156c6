"""Torch half of ``w4a4_nvfp4`` and ``w4a16_nvfp4``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...numerics.microscaling import fake_quantize
from ...registry.errors import CheckpointError
from ...registry.operands import Operands
from .microscaling import MicroscalingNumerics
from .values import take, take_scale


class NvFp4Numerics(MicroscalingNumerics):
    """w = q * s / global; inputs alike, rounded to x's own dtype as compressed-tensors' fake-quantization does."""

    def quantized_inputs(self, x: Tensor, operands: Operands) -> Tensor:
        if self.layer.inputs is None:
            return x
        return fake_quantize(x, self.layer.inputs, operands.input_global_scale)

    def _scales(self, tensors: Mapping[str, Any], grid: tuple[int, int], name: str) -> dict[str, Tensor | None]:
        given = self.layer.inputs is not None
        return {
            "scale": _group_scales(tensors, grid, name),
            "global_scale": take_scale(tensors, "weight_global_scale", name, (1,)),
            "input_global_scale": take_scale(tensors, "input_global_scale", name, (1,)) if given else None,
        }


def _group_scales(tensors: Mapping[str, Any], grid: tuple[int, int], name: str) -> Tensor:
    """float8_e4m3fn [N, G]. One that is zero has underflowed, and its group is zero with it; not so all of them."""
    stored = take(tensors, "weight_scale", name)
    scale = stored.view(torch.float8_e4m3fn) if stored.dtype == torch.uint8 else stored
    wide = scale.to(torch.float32)
    bad = ~(wide >= 0)
    if bool(bad.any()):
        value = float(wide[bad][0])
        kind = "NaN" if value != value else "negative"
        raise CheckpointError(
            f"weight_scale holds {int(bad.sum())} unusable values, the first {kind} at {bad.nonzero()[0].tolist()}",
            layer=name,
            field="weight_scale",
            observed=value,
            required="finite and not negative",
            code="QD658",
        )
    if wide.numel() and not bool(wide.any()):
        raise CheckpointError(
            "weight_scale holds nothing but zeros",
            layer=name,
            field="weight_scale",
            observed=0.0,
            required="above zero",
            code="QD658",
        )
    if tuple(scale.shape) != grid or scale.dtype != torch.float8_e4m3fn:
        raise CheckpointError(
            "weight_scale has the wrong shape or dtype",
            layer=name,
            field="weight_scale",
            observed=f"{stored.dtype} {list(stored.shape)}",
            required=f"torch.float8_e4m3fn {list(grid)}",
            code="QD656",
        )
    return scale
