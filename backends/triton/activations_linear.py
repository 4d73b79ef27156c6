"""The product of quantized inputs and quantized weights of one layer: what is multiplied, in tiles of which size, and
the launch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .activations_codes import E4M3, E8M0, rounded_to
from .activations_product import finish, product
from .launch import HALVES, family, index_of
from .tiles import TILES, rounded_rows, step_of

_DTYPES = {"int8": tl.int8, "fp8": tl.float8e4nv, "b8": tl.float8e4b8}
_HALVES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}
#: families whose matrix instructions take e4m3, and gfx942's its own
_NATIVE = frozenset({"sm89", "sm90", "sm100", "sm120", "interpreter"})


@dataclass(frozen=True)
class Product:
    """What :func:`.activations_product.product` is told at compile time, but for the device and the tile.

    ``weight`` ``"int8"``, ``"int4"``, ``"fp8"`` or ``"fp4"``; ``inputs`` ``"int8"``, ``"fp8"`` or ``"half"``;
    ``group``: columns of a weight scale, 0 if it is for whole rows; ``rows``: outputs of a scale; ``x_group``: columns
    of an input scale, 0 for whole rows; ``zero``: zero points of weights; ``scale``: of :mod:`.activations_codes`;
    ``wide``: does code less zero point need more than 8 bits; ``run``: columns that 4-bit codes are packed by, else the
    most that a step may take.
    """

    weight: str
    inputs: str
    group: int = 0
    rows: int = 1
    x_group: int = 0
    zero: bool = False
    scale: int = 0
    wide: bool = False
    run: int = 128

    @property
    def packed(self) -> bool:
        return self.weight in ("int4", "fp4")

    @property
    def integer(self) -> bool:
        """Is all of it one sum of integers?"""
        return self.inputs == "int8" and not self.group and not self.x_group

    def key(self) -> str:
        """As text, for operators, whose arguments are texts and numbers."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @staticmethod
    @cache
    def of(key: str) -> Product:
        return Product(**json.loads(key))

    def constants(self, where: str, dtype: torch.dtype) -> Mapping[str, Any]:
        """The constants of the kernels on the devices of a family, for inputs that were ``dtype`` before."""
        return _constants(self, where, dtype)


@cache
def _constants(of: Product, where: str, dtype: torch.dtype) -> dict[str, Any]:
    fp8 = "nv" if where in _NATIVE else "b8" if where == "gfx942" else "bits"
    factor = 1.0
    if of.inputs == "int8":
        dot = tl.int8
    elif of.inputs == "half":
        # the interpreter multiplies bfloat16 as raw bits
        dot = tl.float32 if where == "interpreter" and dtype == torch.bfloat16 else _HALVES[dtype]
    elif of.weight == "fp8" and fp8 != "bits":
        dot = tl.float8e4nv if fp8 == "nv" else tl.float8e4b8
        factor = 1.0 if fp8 == "nv" else 4.0
    else:
        dot = tl.float16
    return {
        "WEIGHT": of.weight, "INPUT": of.inputs, "DOT": dot, "FP8": "nv" if fp8 == "nv" else "bits",
        "INTEGER": of.integer, "ZERO": of.zero, "CORRECT": of.zero and of.wide and of.inputs == "int8",
        "GROUP": of.group, "ROWS": of.rows, "XGROUP": of.x_group, "SCALE": of.scale,
        "FOLD": folds(of, dtype), "FACTOR": factor,
    }  # fmt: skip


def folds(of: Product, dtype: torch.dtype) -> bool:
    """Are the scales of small groups multiplied into the weights? Only where that is exact: e4m3 times e2m1 has six
    bits, and a power of two takes no bits, but float16 does not have the exponents."""
    if of.inputs != "half" or not of.group:
        return False
    return of.scale == E4M3.value or (of.scale == E8M0.value and dtype == torch.bfloat16)


@triton.jit
def linear(
    x_ptr, w_ptr, s_ptr, z_ptr, sums_ptr, xs_ptr, xz_ptr, global_ptr, bias_ptr, y_ptr, m, n, k, x_stride, w_stride,
    s_rows, x_groups, xs_stride, columns,
    WEIGHT: tl.constexpr, INPUT: tl.constexpr, DOT: tl.constexpr, FP8: tl.constexpr, INTEGER: tl.constexpr,
    ZERO: tl.constexpr, CORRECT: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, XGROUP: tl.constexpr,
    SCALE: tl.constexpr, FOLD: tl.constexpr, FACTOR: tl.constexpr, EVEN: tl.constexpr, SPLIT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y [M, N], or, split, the accumulators of each part [SPLIT, M, N]. ``columns``: of K a part has."""
    bands = tl.cdiv(m, BM)
    # neighbours share weights: those are read from memory once for all rows that are there
    program = tl.program_id(0)
    outputs = (program // bands) * BN + tl.arange(0, BN)
    rows = (program % bands) * BM + tl.arange(0, BM)
    part = tl.program_id(1)
    at = tl.minimum(outputs, n - 1)
    row = tl.minimum(rows, m - 1).to(tl.int64)
    acc = product(
        x_ptr, row * x_stride, w_ptr, s_ptr, z_ptr, xs_ptr, row * x_groups, at, k, part * columns,
        tl.minimum((part + 1) * columns, k), w_stride, s_rows, WEIGHT, INPUT, DOT, FP8, INTEGER, ZERO, CORRECT, GROUP,
        ROWS, XGROUP, SCALE, FOLD, EVEN, BK,
    )  # fmt: skip
    where = row[None, :] * n + at[:, None]
    valid = (outputs < n)[:, None] & (rows < m)[None, :]
    if SPLIT > 1:
        tl.store(y_ptr + part.to(tl.int64) * m * n + where, acc, mask=valid)
    else:
        xs = None
        xz = None
        if xs_ptr is not None and XGROUP == 0:
            xs = tl.load(xs_ptr + row * xs_stride)
            if xz_ptr is not None:
                xz = tl.load(xz_ptr + row * xs_stride)
        y = finish(acc, s_ptr, sums_ptr, global_ptr, bias_ptr, xs, xz, at, GROUP, ROWS, SCALE, FACTOR)
        tl.store(y_ptr + where, rounded_to(y, y_ptr.dtype.element_ty), mask=valid)


@triton.jit
def add_parts(
    parts_ptr, s_ptr, sums_ptr, xs_ptr, xz_ptr, global_ptr, bias_ptr, y_ptr, m, n, xs_stride,
    GROUP: tl.constexpr, ROWS: tl.constexpr, XGROUP: tl.constexpr, SCALE: tl.constexpr, FACTOR: tl.constexpr,
    SPLIT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The accumulators of all parts, in their order, to y [M, N]."""
    outputs = tl.program_id(0) * BN + tl.arange(0, BN)
    rows = tl.program_id(1) * BM + tl.arange(0, BM)
    at = tl.minimum(outputs, n - 1)
    row = tl.minimum(rows, m - 1).to(tl.int64)
    where = row[None, :] * n + at[:, None]
    acc = tl.load(parts_ptr + where)
    size = m.to(tl.int64) * n
    for part in tl.static_range(1, SPLIT):
        acc += tl.load(parts_ptr + part * size + where)
    xs = None
    xz = None
    if xs_ptr is not None and XGROUP == 0:
        xs = tl.load(xs_ptr + row * xs_stride)
        if xz_ptr is not None:
            xz = tl.load(xz_ptr + row * xs_stride)
    y = finish(acc, s_ptr, sums_ptr, global_ptr, bias_ptr, xs, xz, at, GROUP, ROWS, SCALE, FACTOR)
    valid = (outputs < n)[:, None] & (rows < m)[None, :]
    tl.store(y_ptr + where, rounded_to(y, y_ptr.dtype.element_ty), mask=valid)


def multiply(
    of: Product, x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, sums: Tensor | None,
    x_scale: Tensor | None, x_zero: Tensor | None, global_scale: Tensor | None, bias: Tensor | None, n: int,
    dtype: torch.dtype, out: torch.dtype,
) -> Tensor:  # fmt: skip
    """x [M, K] (codes, or itself) times the transpose of the packed weight [N, K]: [M, N] in ``out``.

    ``dtype``: of x before it was quantized. Nothing here waits for the device.
    """
    m, k = x.shape
    where = family(x)
    tile = TILES.choice(index_of(x), of, rounded_rows(m), n, k, HALVES[dtype])
    step = step_of(of, tile)
    columns = -(-k // (step * tile.split)) * step
    split = -(-k // columns)
    constants = of.constants(where, dtype)
    y = torch.empty((m, n), dtype=out, device=x.device)
    parts = y
    if split > 1:
        parts = torch.empty((split, m, n), dtype=torch.int32 if of.integer else torch.float32, device=x.device)
    stride = 0 if x_scale is None or x_scale.numel() == 1 else 1
    linear[(-(-m // tile.bm) * -(-n // tile.bn), split)](
        x, packed, scale, zero, sums, x_scale, x_zero, global_scale, bias, parts, m, n, k, x.stride(0),
        packed.stride(0), scale.shape[1], -(-k // of.x_group) if of.x_group else 1, stride, columns, **constants,
        EVEN=k % step == 0, SPLIT=split, BM=tile.bm, BN=tile.bn, BK=tile.bk, num_warps=tile.warps,
        num_stages=tile.stages,
    )  # fmt: skip
    if split > 1:
        finishing = {name: constants[name] for name in ("GROUP", "ROWS", "XGROUP", "SCALE", "FACTOR")}
        add_parts[(-(-n // 128), -(-m // 8))](
            parts, scale, sums, x_scale, x_zero, global_scale, bias, y, m, n, stride, **finishing, SPLIT=split,
            BM=8, BN=128,
        )  # fmt: skip
    return y
