"""``cpu/int8_torch``: weight-only 8-bit codes through torch's int8 op, one scale a row (or one in all)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...numerics.rows import select_rows
from ...registry.operands import Operands
from .isa import NATIVE_BF16
from .linear import CpuLinear
from .ops import chunked_mm

#: rows of x from which decoding to fp32 is faster than the op, on a processor without bf16 instructions
MANY_ROWS = 8


def int8_mm(rows: Tensor, codes: Tensor, scale: Tensor) -> tuple[Tensor, bool]:
    """bf16 rows [M, K] times the transpose of codes [N, K] by torch's op; says whether ``scale`` [N] was applied in it.

    K must be a multiple of 16: with any other the op reads past its rows and can end the process. A scale that is not
    bf16 is left to the caller, who applies it unrounded.
    """
    inside = scale.dtype == torch.bfloat16
    factor = scale if inside else torch.ones_like(scale, dtype=torch.bfloat16)
    return torch._weight_int8pack_mm(rows.contiguous(), codes, factor), inside


def row_scale(scale: Tensor, n: int) -> Tensor:
    """[N] or [1] to contiguous [N]."""
    return scale if scale.shape[0] == n else scale.expand(n).contiguous()


class Int8Linear(CpuLinear):
    """State: ``codes`` int8 [N, K], less the zero points where there are any; ``scale`` [N] or [1];
    ``zero_point`` as stored. Zero points are admitted up to 7 bits, where the difference fits int8."""

    def pack(self, operands: Operands) -> dict[str, Tensor]:
        state = self.keep(operands) | {"codes": operands.codes.contiguous(), "scale": operands.scale.reshape(-1)}
        if operands.zero_point is not None:
            state["zero_point"] = operands.zero_point
            state["codes"] = state["codes"] - operands.zero_point
        return state

    def unpack(self, state: Mapping[str, Tensor]) -> Operands:
        codes, zero_point = state["codes"], state.get("zero_point")
        if zero_point is not None:
            codes = codes + zero_point
        return self.restore(state, codes=codes, scale=state["scale"].unsqueeze(1), zero_point=zero_point)

    def rows(self, index: Tensor, state: Mapping[str, Tensor]) -> Operands:
        """The layer with only the rows ``index`` [R] of its N, for an embedding that shares the weight."""
        stored = self.restore(state, codes=state["codes"], scale=state["scale"].unsqueeze(1))
        stored.zero_point = state.get("zero_point")
        chosen = select_rows(stored, self.weights, index)
        if chosen.zero_point is not None:
            chosen.codes = chosen.codes + chosen.zero_point
        return chosen

    def forward(self, rows: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        codes = state["codes"]
        scale = row_scale(state["scale"], self.n)
        if rows.shape[0] >= MANY_ROWS and not NATIVE_BF16:
            return chunked_mm(rows.float(), codes, None, None, None, 8, 1, self.k) * scale
        y, scaled = int8_mm(rows, codes, scale)
        return y if scaled else y * scale.float()
