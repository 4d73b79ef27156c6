"""``cpu/w8a8_onednn``, ``cpu/w7a8_onednn`` and ``cpu/w8a8_torch``: int4 and int8 activations times integer weights.

x ~ sx (q - zx) and W ~ sw (c - zw), one sx a token or in all, one sw a row or in all; so
y = sx sw (sum (q - zx) c - zw sum (q - zx)), and q c is a product of integers. The three differ in how they take it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...registry.operands import Operands
from .activations import quantize_int
from .int8 import int8_mm, row_scale
from .linear import CpuLinear
from .ops import chunked_mm, u8s8_mm
from .shared_inputs import quantize_shared

#: rows of x up to which torch's bf16 int8 op beats the other products (its time grows with the rows)
FEW_ROWS = 4


class W8A8Linear(CpuLinear):
    """The product by torch's own ops. State: ``codes`` int8 [N, K], ``scale`` [N] or [1],
    ``zero_point``, and with oneDNN
    ``code_sums`` fp32 [N]."""

    def __init__(self, spec: object) -> None:
        super().__init__(spec)  # type: ignore[arg-type]
        assert self.inputs is not None
        # Outside of these the op crashes, or would round an fp32 result to bf16.
        fits = self.dtype == torch.bfloat16 and self.k % 16 == 0 and self.weights.symmetric
        # And what the op rounds to bf16 may fall into another step of quantized outputs.
        self.few = FEW_ROWS if fits and self.outputs is None else 0

        shared = self.inputs.dynamic and self.inputs.symmetric and self.weights.strategy == "channel"
        self.quick = self.few * self.k if shared else 0

    def apply(self, x: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        few = 0 < x.numel() <= self.quick and state["scale"].dtype == torch.bfloat16
        return self._quick(x, state) if few and not torch.compiler.is_compiling() else super().apply(x, state)

    def _quick(self, x: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """The usual case of decoding in as few calls as it takes; the same values as :meth:`forward`."""
        assert self.inputs is not None
        self.check(x)
        codes, x_scale = quantize_shared(x, self.inputs)
        y = torch._weight_int8pack_mm(codes, state["codes"], state["scale"]).mul_(x_scale)
        bias = state.get("bias")
        if bias is not None:
            y = (y.float() + bias).bfloat16()
        if x.ndim == 3 and x.shape[0] == 1:
            return y.unsqueeze(0)
        return y if x.ndim == 2 else y.view(*x.shape[:-1], self.n)

    def pack(self, operands: Operands) -> dict[str, Tensor]:
        state = self.keep(operands) | {"codes": operands.codes.contiguous(), "scale": operands.scale.reshape(-1)}
        if operands.zero_point is not None:
            state["zero_point"] = operands.zero_point
        return state

    def unpack(self, state: Mapping[str, Tensor]) -> Operands:
        parts = {"scale": state["scale"].unsqueeze(1), "zero_point": state.get("zero_point")}
        return self.restore(state, codes=state["codes"], **parts)

    def forward(self, rows: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        assert self.inputs is not None
        q, x_scale, x_zero = quantize_int(rows, self.inputs, state.get("input_scale"), state.get("input_zero_point"))
        scale = row_scale(state["scale"], self.n)
        if rows.shape[0] <= self.few:
            if x_zero is not None:
                q = q - x_zero
            y, scaled = int8_mm(q.bfloat16(), state["codes"], scale)
            # in place: the product is taken in fp32 and rounded once, without a wider tensor in between
            return y.mul_(x_scale) if scaled else y * x_scale * scale.float()
        y = self.products(q, x_zero, state)
        zero_point = state.get("zero_point")
        if zero_point is not None:
            sums = q.sum(-1, keepdim=True)
            if x_zero is not None:
                sums = sums - self.k * x_zero
            y = y - sums * zero_point.reshape(-1).float()
        return y * x_scale * scale.float()

    def products(self, q: Tensor, x_zero: Tensor | None, state: Mapping[str, Tensor]) -> Tensor:
        """sum over K of (q - x_zero) codes, fp32 [M, N]."""
        shifted = q if x_zero is None else q - x_zero
        return chunked_mm(shifted, state["codes"], None, None, None, 8, 1, self.k)


class OneDnnLinear(W8A8Linear):
    """The product by oneDNN's u8 x s8."""

    def pack(self, operands: Operands) -> dict[str, Tensor]:
        state = super().pack(operands)
        if self.inputs is not None and not self.inputs.symmetric:
            # exact: K * 128 stays below 2^24 for every K up to 131072
            state["code_sums"] = operands.codes.sum(-1, dtype=torch.int32).to(torch.float32)
        return state

    def products(self, q: Tensor, x_zero: Tensor | None, state: Mapping[str, Tensor]) -> Tensor:
        y = u8s8_mm(q, state["codes"])
        return y if x_zero is None else y - x_zero * state["code_sums"]
