"""Torch half of the mx schemes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...numerics.activations import expand_groups, quantize_fp8
from ...numerics.microscaling import fake_quantize, is_mx
from ...registry.errors import CheckpointError
from ...registry.operands import Operands
from .microscaling import MicroscalingNumerics
from .values import take, take_scale

#: e8m0 keeps its last value for NaN
NAN_EXPONENT = 255


class MxNumerics(MicroscalingNumerics):
    """w = q * 2^(e - 127); inputs mx too, or beside fp4 weights fp8 with float scales."""

    def quantized_inputs(self, x: Tensor, operands: Operands) -> Tensor:
        inputs = self.layer.inputs
        if inputs is None:
            return x
        # fp8 in groups of 32 that does not say what its scales are: float ones come beside fp4 weights only
        if is_mx(inputs) or self.weights.num_bits != 4:
            return fake_quantize(x, inputs, mx=True)
        codes, scale = quantize_fp8(x, inputs)
        if inputs.strategy == "group" and inputs.group_size:
            scale = expand_groups(scale, inputs.group_size, x.shape[-1])
        return codes.to(scale.dtype) * scale

    def _scales(self, tensors: Mapping[str, Any], grid: tuple[int, int], name: str) -> dict[str, Tensor | None]:
        stored = take(tensors, "weight_scale", name)
        if stored.is_floating_point() and stored.dtype != torch.float8_e8m0fnu:
            return {"scale": take_scale(tensors, "weight_scale", name, grid)}
        exponent = stored.view(torch.uint8)
        bad = exponent == NAN_EXPONENT
        if bool(bad.any()):
            raise CheckpointError(
                f"weight_scale holds {int(bad.sum())} NaN exponents, the first at {bad.nonzero()[0].tolist()}",
                layer=name,
                field="weight_scale",
                observed=NAN_EXPONENT,
                required="0..254",
                code="QD658",
            )
        if tuple(exponent.shape) != grid:
            raise CheckpointError(
                "weight_scale has the wrong shape",
                layer=name,
                field="weight_scale",
                observed=list(exponent.shape),
                required=list(grid),
                code="QD656",
            )
        return {"scale": exponent}
