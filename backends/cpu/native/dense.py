"""``cpu/native_dense``: layers left in bf16, with their weight as torch keeps it: nothing is packed and nothing copied.

torch computes bf16 products on a processor without bf16 instructions by converting them, at a seventh of what the
processor can do. With such instructions its products of many rows are good, and only few rows are taken over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ....registry.facts import KernelSpec
from ....registry.operands import Operands
from ..isa import NATIVE_BF16
from ..tracing import recording
from .library import load

#: rows of x up to which torch is not asked. With bf16 instructions (measured on Emerald Rapids, outputs x inputs of
#: 49152 x 576, 4096 x 4096 and smaller) its product takes 1.7 to 3 times as long at one row, 1.2 to 1.6 times at 16
MOST_ROWS = 16 if NATIVE_BF16 else 1 << 62


def probe() -> str | None:
    """The product is right here, at one row and at many."""
    weight = (torch.arange(5 * 35, device="cpu").view(5, 35) % 17 - 8).bfloat16()
    x = (torch.arange(4 * 35, device="cpu").view(4, 35) % 5 - 2).bfloat16()
    for rows in (1, 4):
        y = torch.empty(rows, 5, dtype=torch.bfloat16, device="cpu")
        code = call(x[:rows], weight, None, y)
        if code:
            return f"qd_dense returned {code}: the instruction set in use has no such kernel"
        error = (y.float() - x[:rows].float() @ weight.float().T).abs().max().item()
        if error > 1:
            return f"the product is off by {error}"
    return None


def call(rows: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor) -> int:
    """y [M, N] = rows [M, K] @ weight.T + bias, all bf16 and contiguous along their last dimension. Returns 0, or the
    error's number."""
    n, k = weight.shape
    code: int = load().qd_dense(
        weight.data_ptr(), n, k, weight.stride(0), None if bias is None else bias.data_ptr(),
        rows.data_ptr(), rows.shape[0], rows.stride(0), y.data_ptr(), y.stride(0), torch.get_num_threads(),
    )  # fmt: skip
    return code


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [..., K] times the transpose of weight [N, K], plus bias [N]: all bf16 on the CPU."""
    if x.is_neg() or weight.is_neg() or (bias is not None and bias.is_neg()):  # signs that their memory does not have
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    y = torch.empty(rows.shape[0], weight.shape[0], dtype=torch.bfloat16, device="cpu")
    if rows.shape[0] > MOST_ROWS or call(rows, weight, bias, y):
        return F.linear(x, weight, bias)
    return y.view(*x.shape[:-1], weight.shape[0])


_library: Any = torch.library.Library("quantdispatch", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("native_dense(Tensor x, Tensor weight, Tensor? bias) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
_library.impl("native_dense", product, "CPU")
torch.library.register_fake(
    "quantdispatch::native_dense",
    lambda x, weight, bias: x.new_empty((*x.shape[:-1], weight.shape[0])),
    lib=_library,
)
_op = torch.ops.quantdispatch.native_dense.default


class NativeDense:
    """State: ``weight`` bf16 [N, K] and, where there is one, ``bias`` bf16 [N]."""

    def __init__(self, spec: KernelSpec) -> None:
        self.spec = spec

    def pack(self, operands: Operands) -> dict[str, Tensor]:
        state = {"weight": operands.codes}
        return state if operands.bias is None else state | {"bias": operands.bias}

    def unpack(self, state: Mapping[str, Tensor]) -> Operands:
        return Operands(codes=state["weight"], scale=None, bias=state.get("bias"))

    def apply(self, x: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """What ``F.linear`` computes, which is what runs where these tensors are not those that the kernel is for: not
        bf16, not on the CPU, not contiguous, or with a gradient."""
        weight, bias = state["weight"], state.get("bias")
        if not _fits(x, weight, bias):
            return F.linear(x, weight, bias)
        result: Tensor = (_op if recording() else product)(x, weight, bias)
        return result


def _fits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    if not (x.dtype is weight.dtype is torch.bfloat16 and x.is_cpu and weight.is_cpu and x.numel() > 0):
        return False
    if torch.is_autocast_enabled("cpu"):
        return False
    if weight.ndim != 2 or weight.stride(1) != 1 or x.shape[-1] != weight.shape[1]:
        return False
    if bias is not None and not _fitting_bias(bias, weight.shape[0]):
        return False
    learns = x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    return not (torch.is_grad_enabled() and learns)


def _fitting_bias(bias: Tensor, n: int) -> bool:
    plain = bias.dtype is torch.bfloat16 and bias.is_cpu
    return plain and bias.shape == (n,) and bias.is_contiguous()
