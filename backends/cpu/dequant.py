"""``cpu/dequant``: whatever has no op. Weights stay packed and are decoded in chunks in every call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ...numerics.rows import select_rows
from ...registry.operands import Operands
from .activations import seen_inputs
from .bitplanes import codes_of, pack_planes
from .chunked import FP8
from .float8 import is_nan
from .isa import NATIVE_BF16
from .linear import CpuLinear
from .ops import chunked_mm, plane_codes

#: rows of x from which a bf16 product on bf16 instructions outweighs one more pass over the weight
MANY_ROWS = 64


def nan_rows(bits: Tensor) -> dict[str, Tensor]:
    """``nan_rows`` [N] for the state where float8 ``bits`` [N, K] hold a NaN, which decoding does not see. It makes its
    row's result NaN whatever x is, so one value a row says it all."""
    nan = is_nan(bits).any(-1)
    if not nan.any():
        return {}
    return {"nan_rows": torch.zeros(len(nan), dtype=torch.float32, device="cpu").masked_fill_(nan, torch.nan)}


class DequantLinear(CpuLinear):
    """State: ``codes`` uint8 bit planes of 1..7 bits, int8 [N, K] for 8 bits and for float8 (its bits); ``scale`` and
    ``zero_point`` as stored, zero points of groups of 1 or 2 bits in bit planes; ``g_idx``; ``nan_rows`` [N], 0 or NaN,
    where float8 weights hold a NaN."""

    def __init__(self, spec: object) -> None:
        super().__init__(spec)  # type: ignore[arg-type]
        args = self.weights
        self.bits = FP8 if args.type == "float" else args.num_bits
        # beside so few bits a byte a zero point would show
        self.packed_zeros = args.strategy == "group" and self.bits in (1, 2)
        self.by_row = args.strategy in ("tensor", "channel")
        self.block = args.block_structure or (1, args.group_size if args.strategy == "group" else self.k)

    def pack(self, operands: Operands) -> dict[str, Tensor]:
        state = self.keep(operands) | {"scale": operands.scale}
        if self.bits == FP8:
            state["codes"] = operands.codes.contiguous().view(torch.int8)
            state |= nan_rows(state["codes"])
        else:
            state["codes"] = pack_planes(operands.codes, self.bits)
        if operands.g_idx is not None:
            state["g_idx"] = operands.g_idx
        if operands.zero_point is not None:
            zero = operands.zero_point
            state["zero_point"] = pack_planes(zero, self.bits) if self.packed_zeros else zero
        return state

    def unpack(self, state: Mapping[str, Tensor]) -> Operands:
        stored = self._stored(state)
        return replace(stored, codes=self._codes(stored.codes))

    def rows(self, index: Tensor, state: Mapping[str, Tensor]) -> Operands:
        """The layer with only the rows ``index`` [R] of its N, for an embedding that shares the weight; to be read with
        :func:`...numerics.rows.row_args`."""
        chosen = select_rows(self._stored(state), self.weights, index)
        return replace(chosen, codes=self._codes(chosen.codes))

    def _stored(self, state: Mapping[str, Tensor]) -> Operands:
        parts = {"zero_point": self._zero_point(state), "g_idx": state.get("g_idx")}
        return self.restore(state, codes=state["codes"], scale=state["scale"], **parts)

    def _zero_point(self, state: Mapping[str, Tensor]) -> Tensor | None:
        zero = state.get("zero_point")
        return zero if zero is None or not self.packed_zeros else codes_of(zero, self.bits, state["scale"].shape[1])

    def _codes(self, stored: Tensor) -> Tensor:
        return stored.view(torch.float8_e4m3fn) if self.bits == FP8 else plane_codes(stored, self.bits, self.k)

    def forward(self, rows: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        rows, x_scale = seen_inputs(rows, self.inputs, state.get("input_scale"), state.get("input_zero_point"))
        scale = state["scale"]
        zero = self._zero_point(state)
        if zero is not None and self.by_row:
            zero = zero.expand(self.n, 1)
        rows_block, columns_block = self.block
        y = chunked_mm(
            rows.bfloat16() if self._narrow(rows.shape[0]) else rows.float(),
            state["codes"],
            None if self.by_row else scale,
            zero,
            state.get("g_idx"),
            self.bits,
            rows_block,
            columns_block or self.k,
        )
        if x_scale is not None:
            y = y * x_scale
        if self.by_row:
            y = y * scale.reshape(-1).float()
        nan_rows = state.get("nan_rows")
        return y if nan_rows is None else y + nan_rows

    def _narrow(self, rows: int) -> bool:
        """Multiply in bf16? For many rows of bf16 on a processor with bf16 instructions, else in fp32. Codes, less
        their zero points too, are exact in bf16; inputs with group scales of their own are not. A result that is
        rounded to bf16 is another one to outputs that are quantized."""
        exact = (self.inputs is None or self.inputs.strategy != "group") and self.outputs is None
        return self.dtype == torch.bfloat16 and rows >= MANY_ROWS and exact and NATIVE_BF16
