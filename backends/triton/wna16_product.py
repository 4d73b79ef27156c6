"""The product of weights in words and activations, and the weight alone: launches, and the choice of a config."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import autotune, config
from .compat import INTERPRETED
from .config import Config
from .launch import device_name, device_of, family_of, index_of, processors
from .ops import define
from .wna16_kernel import product, sum_splits, weight
from .wna16_layout import Layout

_DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}
_SUM_BLOCK = 1024
_WEIGHT_ROWS = 16
_forced: list[Config] = []


@contextmanager
def forced(choice: Config) -> Iterator[None]:
    """Use this config whatever was measured: to measure it, or to test it."""
    _forced.append(choice)
    try:
        yield
    finally:
        _forced.pop()


def task(m: int, layout: Layout, half: str, zero: bool) -> str:
    """What a measured config is good for."""
    parts = [f"m{config.bucket(m)}", f"n{layout.n}", f"k{layout.inner}", f"form{layout.form}", f"bits{layout.bits}"]
    return " ".join(["wna16", *parts, f"group{layout.group}", f"run{layout.run}", half, "zero" if zero else "sym"])


@lru_cache(maxsize=4096)
def _chosen(m: int, layout: Layout, half: str, zero: bool, index: int) -> Config:
    found = autotune.chosen(device_name(index), task(m, layout, half, zero))
    return found or config.default(m, layout.n, layout.tiles, family_of(index), processors(index))


def forget() -> None:
    """After tuning: look again."""
    _chosen.cache_clear()


def multiply(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, columns: Tensor | None, addend: Tensor | None,
    divisor: Tensor | None, numbers: Sequence[int], scale_kind: int, wide: bool,
) -> Tensor:  # fmt: skip
    """x [M, K] by the layer to [M, N], ``addend`` [N] added: in x's dtype, or fp32 with ``wide``."""
    layout = Layout(*numbers)
    index = index_of(x)
    half = "bf16" if x.dtype == torch.bfloat16 else "fp16"
    m = x.shape[0]
    # what was measured for a power of two serves all up to it
    choice = _forced[-1] if _forced else _chosen(config.bucket(m), layout, half, zero is not None, index)
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
