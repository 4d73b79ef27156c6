"""``triton/block_scaled``: nvfp4 and mx weights with inputs of the same kind, by instructions that take the scales.

y = sum over groups of (codes of x . codes of w) * scale of x * scale of w, over the global scales where there are any;
summed in fp32, so that neither side is rounded to 16 bits first, as it is where codes are decoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...numerics.microfloats import pack_floats, unpack_floats
from ...numerics.microscaling import is_nvfp4
from ...registry.args import QuantArgs
from ...registry.facts import KernelSpec
from ...registry.operands import Operands
from .activations import quantize_small
from .compat import INTERPRETED
from .launch import HALVES, index_of
from .linear import TritonLinear
from .ops import define
from .scaled_blocks import chosen
from .scaled_kernel import scaled_product

_DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}
_E8M0, _E4M3 = 1, 2


class BlockScaledLinear(TritonLinear):
    """State: ``packed`` uint8 [N, K / 2] (e2m1) or [N, K] (e4m3), ``scale`` uint8 [N, G], ``global_scale`` and
    ``input_global_scale`` fp32 [1] (nvfp4)."""

    def __init__(self, spec: KernelSpec) -> None:
        super().__init__(spec)
        if spec.inputs is None:
            raise ValueError(f"both sides have scales a group, not {spec}")
        self.nv = is_nvfp4(self.weights)
        # bits of inputs and weights, and their group
        self.numbers = [spec.inputs.num_bits, self.weights.num_bits, 16 if self.nv else 32]

    def pack(self, operands: Operands) -> dict[str, Tensor]:
        state = self.keep(operands)
        codes, fp4 = operands.codes, self.weights.num_bits == 4
        state["packed"] = (pack_floats(codes, 4) if fp4 else codes.view(torch.uint8)).contiguous()
        state["scale"] = operands.scale.view(torch.uint8).contiguous()
        if operands.global_scale is not None:
            state["global_scale"] = operands.global_scale
        return state

    def unpack(self, state: Mapping[str, Tensor]) -> Operands:
        packed, scale = state["packed"], state["scale"]
        fp4 = self.weights.num_bits == 4
        return self.restore(
            state,
            codes=unpack_floats(packed, 4) if fp4 else packed.view(torch.float8_e4m3fn),
            scale=scale.view(torch.float8_e4m3fn) if self.nv else scale,
            global_scale=state.get("global_scale"),
        )

    def forward(self, rows: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        y: Tensor = block_scaled_mm(
            rows, state["packed"], state["scale"], state.get("bias"), state.get("input_global_scale"),
            state.get("global_scale"), self.numbers,
        )  # fmt: skip
        return y


def _multiply(
    x: Tensor, packed: Tensor, scale: Tensor, bias: Tensor | None, x_divisor: Tensor | None, divisor: Tensor | None,
    numbers: Sequence[int],
) -> Tensor:  # fmt: skip
    """x [M, K] to [M, N] in x's dtype. ``numbers``: bits of inputs, bits of weights, the group."""
    x_bits, w_bits, group = numbers
    (m, k), n = x.shape, packed.shape[0]
    kind = _E8M0 if group == 32 else _E4M3
    codes, x_scale = quantize_small(x, _NVFP4 if group == 16 else _MX[x_bits], x_divisor)
    out = torch.float32 if INTERPRETED else x.dtype
    y = torch.empty((m, n), dtype=out, device=x.device)
    one = chosen(index_of(x), m, n, k, x_bits, w_bits, group, HALVES[x.dtype])
    scaled_product[(triton.cdiv(m, one.m) * triton.cdiv(n, one.n),)](
        codes, x_scale, packed, scale, bias, x_divisor, divisor, y, m, n, k,
        X_FP4=x_bits == 4, W_FP4=w_bits == 4, GROUP=group, KIND=kind, BIAS=bias is not None,
        DIVISOR=divisor is not None, NATIVE=not INTERPRETED, OUT=_DTYPES[out],
        BLOCK_M=one.m, BLOCK_N=one.n, BLOCK_K=one.k, num_warps=one.warps, num_stages=one.stages,
    )  # fmt: skip
    return y.to(x.dtype)


_NVFP4 = QuantArgs(type="float", num_bits=4, strategy="tensor_group", group_size=16, dynamic="local")
_MX = {
    bits: QuantArgs(type="float", num_bits=bits, strategy="group", group_size=32, dynamic=True, scale_dtype="uint8")
    for bits in (4, 8)
}

block_scaled_mm = define(
    "block_scaled_mm(Tensor x, Tensor packed, Tensor scale, Tensor? bias, Tensor? x_divisor, Tensor? divisor,"
    " int[] numbers) -> Tensor",
    _multiply,
    lambda x, packed, *_: x.new_empty((x.shape[0], packed.shape[0])),
)
