"""``torch/*``: quantized activations times quantized weights by torch's own ops.

The ops run on the CPU too, which is how they are tested; no GPU has run them from here yet. cuBLASLt wants W.T with
its columns together, so weights stay [N, K] as they are stored and are passed transposed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...numerics.activations import quantize_fp8, quantize_int
from ...registry.operands import Operands
from ..device_linear import DeviceLinear

#: ``_int_mm`` on CUDA takes more rows than this
_LEAST_ROWS = 17


class TorchLinear(DeviceLinear):
    """State: ``codes`` [N, K], ``scale`` as stored, ``wide_scale`` fp32 [1, N] or [], ``zero_point`` where there is
    one."""

    def pack(self, operands: Operands) -> dict[str, Tensor]:
        state = self.keep(operands) | {"codes": operands.codes.contiguous(), "scale": operands.scale}
        state["wide_scale"] = self.wide(operands.scale.float())
        if operands.zero_point is not None:
            state["zero_point"] = operands.zero_point
        return state

    def wide(self, scale: Tensor) -> Tensor:
        """fp32 scales in the shape that the product takes."""
        return scale.reshape(1, -1).expand(1, self.n).contiguous()

    def unpack(self, state: Mapping[str, Tensor]) -> Operands:
        parts = {"scale": state["scale"], "zero_point": state.get("zero_point")}
        return self.restore(state, codes=state["codes"], **parts)


class ScaledMm(TorchLinear):
    """fp8 with one scale of all x and one of all W, inside the product."""

    def wide(self, scale: Tensor) -> Tensor:
        return scale.reshape(())

    def forward(self, rows: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        assert self.inputs is not None
        q, scale = quantize_fp8(rows, self.inputs, state.get("input_scale"))
        return _scaled_mm(q, state["codes"], scale.reshape(()), state["wide_scale"], self.dtype)


class ScaledMmRows(TorchLinear):
    """fp8 with a scale for each row of x and of W, inside the product, bf16 outputs."""

    def forward(self, rows: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        assert self.inputs is not None
        q, scale = quantize_fp8(rows, self.inputs, state.get("input_scale"))
        by_row = scale.expand(rows.shape[0], 1).contiguous()
        return _scaled_mm(q, state["codes"], by_row, state["wide_scale"], self.dtype)

    @staticmethod
    def fuse(first: Sequence[Sequence[Any]], last: Sequence[Any], activation: str) -> Any:
        """All experts of a layer in three grouped products, where the device has them; see :mod:`.experts`."""
        from .experts import fuse

        return fuse(first, last, activation)


class ScaledMmAfter(TorchLinear):
    """fp8 with scales for rows, applied to the fp32 product."""

    def forward(self, rows: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        assert self.inputs is not None
        q, scale = quantize_fp8(rows, self.inputs, state.get("input_scale"))
        one = torch.ones((), device=rows.device)
        y = _scaled_mm(q, state["codes"], one, one, torch.float32)
        return y * scale * state["wide_scale"]


class IntMm(TorchLinear):
    """int8: y = sx sw (sum (q - zx) c - zw sum (q - zx)), the products exact in int32. State also: ``code_sums`` fp32
    [N] where inputs have zero points."""

    def pack(self, operands: Operands) -> dict[str, Tensor]:
        state = super().pack(operands)
        if self.inputs is not None and not self.inputs.symmetric:
            state["code_sums"] = operands.codes.sum(-1, dtype=torch.int32)
        return state

    def forward(self, rows: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        assert self.inputs is not None
        static = (state.get("input_scale"), state.get("input_zero_point"))
        q, scale, zero = quantize_int(rows, self.inputs, *static)
        few = _LEAST_ROWS - rows.shape[0]
        padded = F.pad(q, (0, 0, 0, few)) if few > 0 else q
        y = torch._int_mm(padded, state["codes"].t())[: rows.shape[0]]
        if zero is not None:
            y = y - zero * state["code_sums"]
        zero_point = state.get("zero_point")
        if zero_point is not None:
            sums = q.sum(-1, keepdim=True, dtype=torch.int32)
            if zero is not None:
                sums = sums - self.k * zero
            y = y - sums * zero_point.reshape(1, -1).int()
        return y.float() * scale * state["wide_scale"]


def _scaled_mm(q: Tensor, codes: Tensor, scale: Tensor, weight_scale: Tensor, dtype: torch.dtype) -> Tensor:
    result: Tensor = torch._scaled_mm(q, codes.t(), scale_a=scale, scale_b=weight_scale, out_dtype=dtype)
    return result
