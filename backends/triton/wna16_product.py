"""The product of weights in words and activations, and the weight alone: launches, and the choice of a config."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import config, tuning
from .compat import INTERPRETED
from .config import Config
from .launch import HALVES, Device, device_of, index_of
from .ops import define
from .tuning import Family
from .wna16_kernel import product, sum_splits, weight
from .wna16_layout import Layout

_DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}
_SUM_BLOCK = 1024
_WEIGHT_ROWS = 16


def _task(m: int, layout: Layout, half: str, zero: bool) -> str:
    parts = [f"m{m}", f"n{layout.n}", f"k{layout.inner}", f"form{layout.form}", f"bits{layout.bits}"]
    return " ".join([*parts, f"group{layout.group}", f"run{layout.run}", half, "zero" if zero else "sym"])


def _default(device: Device, m: int, layout: Layout, half: str, zero: bool) -> Config:
    return config.default(m, layout.n, layout.tiles, device.family, device.processors)


def _candidates(device: Device, m: int, layout: Layout, half: str, zero: bool) -> list[Config]:
    found = config.candidates(m, layout.n, layout.tiles, device.family, device.processors)
    return [one for one in found if one is found[0] or fits(one, layout, device.family)]


def fits(one: Config, layout: Layout, family: str) -> bool:
    """Are the words of a tile and its columns of x there for all stages, and for the instruction?"""
    if one.dense or family == "interpreter":
        return True
    inputs = layout.slots * layout.run * one.block_m * 2
    loaded = layout.run * one.block_n * 4 + inputs
    # what Hopper multiplies lies in shared memory, in a layout of its own
    turned = inputs if family == "sm90" and one.block_n >= 64 else 0
    return max(1, one.stages - 1) * loaded + turned <= config.SHARED[family]


#: by rows (rounded up to a power of two), the layout, the dtype of x, and whether there are zero points
CONFIGS = Family("wna16", Config, _task, _default, _candidates)


def forced(choice: Config) -> AbstractContextManager[None]:
    """Use this config whatever was measured: to measure it, or to test it."""
    return tuning.forced(CONFIGS, choice)


def multiply(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, columns: Tensor | None, addend: Tensor | None,
    divisor: Tensor | None, numbers: Sequence[int], scale_kind: int, wide: bool,
) -> Tensor:  # fmt: skip
    """x [M, K] by the layer to [M, N], ``addend`` [N] added: in x's dtype, or fp32 with ``wide``."""
    layout = Layout(*numbers)
    # what was measured for a power of two serves all up to it
    choice = CONFIGS.choice(index_of(x), config.bucket(x.shape[0]), layout, HALVES[x.dtype], zero is not None)
    if choice.dense:
        dense = dequantize(x, packed, scale, zero, columns, divisor, numbers, scale_kind)
        # an fp32 product of 16-bit operands is what the addend is added to; torch offers it in x's dtype only
        y = x @ dense.t()
        if addend is not None:
            y = y.float() + addend
        return y.float() if wide else y.to(x.dtype)
    return _fused(x, packed, scale, zero, columns, addend, divisor, layout, scale_kind, wide, choice)


def _fused(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, columns: Tensor | None, addend: Tensor | None,
    divisor: Tensor | None, layout: Layout, scale_kind: int, wide: bool, choice: Config,
) -> Tensor:  # fmt: skip
    m, n = x.shape[0], layout.n
    group_runs = layout.group // layout.run
    out = torch.float32 if wide else x.dtype
    y = torch.empty((m, n), dtype=out, device=x.device)
    splits = min(choice.splits, layout.tiles)
    parts = y if splits == 1 else torch.empty((splits, m, n), dtype=torch.float32, device=x.device)
    exact = INTERPRETED and x.dtype == torch.bfloat16
    dtype = tl.float32 if exact else _DTYPES[x.dtype]
    target = parts if not exact or splits > 1 else torch.empty((m, n), dtype=torch.float32, device=x.device)
    grid = (triton.cdiv(n, choice.block_n) * triton.cdiv(m, choice.block_m), splits)
    product[grid](
        x, packed, scale, zero, columns, addend, divisor, target,
        m, n, layout.inner, x.stride(0), packed.stride(0), layout.tiles, layout.groups,
        FORM=layout.form, BITS=layout.bits, RUN=layout.run, GROUP_RUNS=group_runs, SCALE=scale_kind,
        ZERO=zero is not None, COLUMNS=columns is not None, WHOLE=layout.whole, BIAS=addend is not None,
        DIVISOR=divisor is not None, DTYPE=dtype, FAST=not INTERPRETED and torch.version.hip is None, EXACT=exact,
        BLOCK_M=choice.block_m, BLOCK_N=choice.block_n, PARTS=splits > 1, PER_SCALE=per_scale(group_runs, layout.slots),
        STAGES=choice.stages, WIDE=wide, num_warps=choice.warps, num_stages=choice.stages,
    )  # fmt: skip
    if splits > 1:
        total = torch.empty((m, n), dtype=torch.float32, device=x.device) if exact else y
        sum_splits[(triton.cdiv(m * n, _SUM_BLOCK),)](
            parts, addend, divisor, total, n, m * n, splits, BIAS=addend is not None,
            DIVISOR=divisor is not None, DTYPE=tl.float32 if exact or wide else dtype, BLOCK=_SUM_BLOCK, num_warps=4,
        )  # fmt: skip
        return total.to(out)
    return target.to(out)


def per_scale(group_runs: int, slots: int) -> int:
    """Runs that are summed before a scale is applied: whole groups or parts of one, within the slots of a word."""
    if group_runs == 0:
        return slots
    while group_runs % slots:
        slots //= 2
    return slots


def dequantize(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, columns: Tensor | None, divisor: Tensor | None,
    numbers: Sequence[int], scale_kind: int,
) -> Tensor:  # fmt: skip
    """The weight [N, K] in x's dtype; each value is computed in fp32 and rounded once."""
    layout = Layout(*numbers)
    exact = INTERPRETED and x.dtype == torch.bfloat16
    dense = torch.empty((layout.n, layout.k), dtype=torch.float32 if exact else x.dtype, device=x.device)
    with device_of(x):
        weight[(triton.cdiv(layout.n, _WEIGHT_ROWS), layout.tiles)](
            packed, scale, zero, columns, divisor, dense,
            layout.n, layout.k, layout.inner, packed.stride(0), layout.groups,
            FORM=layout.form, BITS=layout.bits, RUN=layout.run, GROUP_RUNS=layout.group // layout.run,
            SCALE=scale_kind, ZERO=zero is not None, COLUMNS=columns is not None, DIVISOR=divisor is not None,
            DTYPE=tl.float32 if exact else _DTYPES[x.dtype], BLOCK_N=_WEIGHT_ROWS, num_warps=4,
        )  # fmt: skip
    return dense.to(x.dtype)


def _fake(x: Tensor, packed: Tensor, *rest: object) -> Tensor:
    return x.new_empty((x.shape[0], packed.shape[0]), dtype=torch.float32 if rest[-1] else x.dtype)


wna16_mm = define(
    "wna16_mm(Tensor x, Tensor packed, Tensor scale, Tensor? zero, Tensor? columns, Tensor? addend, Tensor? divisor,"
    " int[] numbers, int scale_kind, bool wide) -> Tensor",
    multiply,
    _fake,
)
