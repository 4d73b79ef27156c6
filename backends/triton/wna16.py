"""``triton/wna16``: weights of few bits, inputs left as they are, y = x @ w.T + bias."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...numerics.microscaling import is_nvfp4
from ...registry.facts import KernelSpec
from ...registry.operands import Operands
from .linear import TritonLinear
from .wna16_layout import FP8, columns_of, layout_of, pack_codes, unpack_codes
from .wna16_product import wna16_mm

_PLAIN, _E8M0, _E4M3 = 0, 1, 2


class WNA16Linear(TritonLinear):
    """State: ``packed`` int32 [N, words] (:mod:`.wna16_layout`); ``scale`` [G, N] as stored, e4m3 as uint8; ``zero``
    uint8 [G, N], zero points from 0 on; ``columns`` int32 [G, width] and ``g_idx``; ``addend`` fp32 [N], the bias and
    NaN where fp8 codes hold one; ``global_scale`` fp32 [1]."""

    def __init__(self, spec: KernelSpec) -> None:
        super().__init__(spec)
        self.nv = is_nvfp4(self.weights)
        self.layout = layout_of(spec)

    def pack(self, operands: Operands) -> dict[str, Tensor]:
        state = self.keep(operands)
        columns = columns_of(self.spec, operands.g_idx)
        layout = self.layout
        if columns is not None:
            columns = columns.to(operands.codes.device)
            layout = layout_of(self.spec, columns.shape[1])
            state["columns"] = columns
        if operands.g_idx is not None:
            state["g_idx"] = operands.g_idx
        codes = operands.codes.contiguous()
        state["packed"] = pack_codes(codes, layout, columns)
        scale = operands.scale.view(torch.uint8) if self.nv else operands.scale
        state["scale"] = self._outputs(scale)
        if operands.zero_point is not None:
            shifted = operands.zero_point.to(torch.int16) + (1 << (layout.bits - 1))
            state["zero"] = self._outputs(shifted.to(torch.uint8))
        if operands.global_scale is not None:
            state["global_scale"] = operands.global_scale
        addend = _nan_rows(codes) if layout.form == FP8 else None
        if operands.bias is not None:
            addend = operands.bias.to(torch.float32, copy=True) + (0 if addend is None else addend)
        if addend is not None:
            state["addend"] = addend
        return state

    def unpack(self, state: Mapping[str, Tensor]) -> Operands:
        columns = state.get("columns")
        layout = self.layout if columns is None else layout_of(self.spec, columns.shape[1])
        scale = self._stored(state["scale"])
        zero = state.get("zero")
        if zero is not None:
            zero = self._stored((zero.to(torch.int16) - (1 << (layout.bits - 1))).to(torch.int8))
        return self.restore(
            state,
            codes=unpack_codes(state["packed"], layout, columns),
            scale=scale.view(torch.float8_e4m3fn) if self.nv else scale,
            zero_point=zero,
            g_idx=state.get("g_idx"),
            global_scale=state.get("global_scale"),
        )

    def forward(self, rows: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        columns, scale = state.get("columns"), state["scale"]
        layout = self.layout if columns is None else layout_of(self.spec, columns.shape[1])
        kind = _E4M3 if self.nv else _E8M0 if scale.dtype == torch.uint8 else _PLAIN
        y: Tensor = wna16_mm(
            rows, state["packed"], scale, state.get("zero"), columns, state.get("addend"), state.get("global_scale"),
            layout.numbers(), kind, self.outputs is not None,
        )  # fmt: skip
        return y

    def _outputs(self, values: Tensor) -> Tensor:
        """Scales or zero points as stored to [G, N], where programs of neighbouring outputs read them."""
        if self.weights.strategy == "block" and self.weights.block_structure is not None:
            values = values.repeat_interleave(self.weights.block_structure[0], dim=0)[: self.n]
        return values.expand(self.n, -1).t().clone(memory_format=torch.contiguous_format)

    def _stored(self, values: Tensor) -> Tensor:
        """The inverse of :meth:`_outputs`."""
        # contiguous() would leave the strides of a single column as they are
        values = values.t().clone(memory_format=torch.contiguous_format)
        if self.weights.strategy == "tensor":
            return values[:1].clone()
        if self.weights.strategy == "block" and self.weights.block_structure is not None:
            return values[:: self.weights.block_structure[0]].clone()
        return values


def _nan_rows(codes: Tensor) -> Tensor | None:
    """fp32 [N], NaN where a row of e4m3 codes holds one: any product with it is NaN. ``None`` where none does."""
    rows = ((codes.view(torch.uint8) & 0x7F) == 0x7F).any(dim=1)
    if not bool(rows.any()):
        return None
    return torch.where(rows, torch.nan, 0.0).to(torch.float32)
