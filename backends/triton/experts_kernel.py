"""Routed experts inside Triton: sorted tokens times the weights of the expert that each block of them chose."""

from __future__ import annotations

import triton
import triton.language as tl

from .activations_codes import rounded_to
from .activations_product import finish, product


@triton.jit
def _address(fields, field: tl.constexpr, TYPE: tl.constexpr):
    return tl.load(fields + field).to(tl.pointer_type(TYPE))


@triton.jit
def grouped(
    x_ptr, table_ptr, blocks_ptr, pairs_ptr, xs_ptr, y_ptr, n, k, x_stride, w_stride, s_rows, x_groups, repeat,
    FIELDS: tl.constexpr, WEIGHTS: tl.constexpr, SCALES: tl.constexpr, BIASES: tl.constexpr, BIAS: tl.constexpr,
    GLOBAL: tl.constexpr,
    WEIGHT: tl.constexpr, INPUT: tl.constexpr, DOT: tl.constexpr, FP8: tl.constexpr, INTEGER: tl.constexpr,
    ZERO: tl.constexpr, CORRECT: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, XGROUP: tl.constexpr,
    SCALE: tl.constexpr, FOLD: tl.constexpr, FACTOR: tl.constexpr, EVEN: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y [pairs, N]. A block has the pairs (of a token and an expert that it chose) ``pairs`` [blocks, BM], -1 for none,
    all of the expert ``blocks`` [blocks], -1 for none; a pair's row of x is its number over ``repeat``.

    ``table`` int64 [experts, FIELDS]: addresses of weight, scale, zero point, bias and global scale. ``WEIGHTS``,
    ``SCALES`` and ``BIASES`` are the types there.
    """
    block = tl.program_id(1)
    expert = tl.load(blocks_ptr + block)
    if expert < 0:
        return
    fields = table_ptr + expert.to(tl.int64) * FIELDS
    pair = tl.load(pairs_ptr + block.to(tl.int64) * BM + tl.arange(0, BM))
    row = tl.maximum(pair, 0).to(tl.int64)
    source = row // repeat
    outputs = tl.program_id(0) * BN + tl.arange(0, BN)
    at = tl.minimum(outputs, n - 1)
    s_ptr = _address(fields, 1, SCALES)
    acc = product(
        x_ptr, source * x_stride, _address(fields, 0, WEIGHTS), s_ptr, _address(fields, 2, tl.int8), xs_ptr,
        source * x_groups, at, k, 0, k, w_stride, s_rows, WEIGHT, INPUT, DOT, FP8, INTEGER, ZERO, CORRECT, GROUP, ROWS,
        XGROUP, SCALE, FOLD, EVEN, BK,
    )  # fmt: skip
    xs = None
    if xs_ptr is not None and XGROUP == 0:
        xs = tl.load(xs_ptr + source)
    y = finish(acc, s_ptr, None, None, None, xs, None, at, GROUP, ROWS, SCALE, FACTOR)
    if GLOBAL:
        y = tl.div_rn(y, tl.load(_address(fields, 4, tl.float32)))
    if BIAS:
        y += tl.load(_address(fields, 3, BIASES) + at).to(tl.float32)[:, None]
    where = row[None, :] * n + at[:, None]
    tl.store(y_ptr + where, rounded_to(y, y_ptr.dtype.element_ty), mask=(outputs < n)[:, None] & (pair >= 0)[None, :])
