"""``cpu/dequant``: whatever has no op. Weights stay packed and are decoded in chunks in every call."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...registry.operands import Operands
from .activations import quantize_fp8, quantize_int
from .bitplanes import codes_of, pack_planes
from .chunked import FP8
from .float8 import is_nan
from .linear import CpuLinear
from .native import NATIVE_BF16
from .ops import chunked_mm

#: rows of x from which a bf16 product on bf16 instructions outweighs one more pass over the weight
MANY_ROWS = 64


class DequantLinear(CpuLinear):
    """State: ``codes`` uint8 bit planes of 2..7 bits, int8 [N, K] for 8 bits and for float8 (its bits);
    ``scale`` and ``zero_point`` as stored; ``g_idx``; ``nan_rows`` [N], 0 or NaN, where float8 weights hold a NaN."""

    def __init__(self, spec: object) -> None:
        super().__init__(spec)  # type: ignore[arg-type]
        args = self.weights
        self.bits = FP8 if args.type == "float" else args.num_bits
        self.by_row = args.strategy in ("tensor", "channel")
        self.block = args.block_structure or (1, args.group_size if args.strategy == "group" else self.k)

    def pack(self, operands: Operands) -> dict[str, Tensor]:
        state = self.keep(operands) | {"scale": operands.scale}
        if self.bits == FP8:
            state["codes"] = operands.codes.contiguous().view(torch.int8)
            nan = is_nan(state["codes"]).any(-1)
            if nan.any():
                # A NaN weight makes its row's result NaN whatever x is, so one value a row says it all.
                state["nan_rows"] = torch.zeros(self.n, dtype=torch.float32, device="cpu").masked_fill_(nan, torch.nan)
        else:
            state["codes"] = pack_planes(operands.codes, self.bits)
        for name in ("zero_point", "g_idx"):
            if getattr(operands, name) is not None:
                state[name] = getattr(operands, name)
        return state

    def unpack(self, state: Mapping[str, Tensor]) -> Operands:
        codes = state["codes"]
        codes = codes.view(torch.float8_e4m3fn) if self.bits == FP8 else codes_of(codes, self.bits, self.k)
        parts = {name: state.get(name) for name in ("zero_point", "g_idx")}
        return self.restore(state, codes=codes, scale=state["scale"], **parts)

    def forward(self, rows: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        rows, x_scale = self._quantize(rows, state)
        scale = state["scale"]
        zero = state.get("zero_point")
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

    def _quantize(self, rows: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """x as values of the product, and the scale to apply after it."""
        if self.inputs is None:
            return rows, None
        if self.inputs.type == "float":
            return quantize_fp8(rows, self.inputs, state.get("input_scale"))
        q, scale, zero = quantize_int(rows, self.inputs, state.get("input_scale"), state.get("input_zero_point"))
        return (q if zero is None else q - zero), scale

    def _narrow(self, rows: int) -> bool:
        """Multiply in bf16? For many rows of bf16 on a processor with bf16 instructions, else in fp32. Codes, less
        their zero points too, are exact in bf16; inputs with group scales of their own are not."""
        exact = self.inputs is None or self.inputs.strategy != "group"
        return self.dtype == torch.bfloat16 and rows >= MANY_ROWS and exact and NATIVE_BF16
