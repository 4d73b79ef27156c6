"""Triton kernels that quantize activations to integers and float8, by the formulas of
:mod:`quantdispatch.numerics.activations`, bit for bit.

x [R, K] of 16 or 32 bits becomes codes [R, K] (int8, or the bits of float8_e4m3fn in uint8), fp32 scales and int32 zero
points. Row r of the result may be made from row r // ``repeat`` of x: routed experts with a stored scale each quantize
a token once an expert.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .activations_codes import e4m3_bits, magnitude, round_even

#: the smallest normal fp32, as in numerics
_TINY = tl.constexpr(1.1754943508222875e-38)


@triton.jit
def _codes(x, scale, zero, FP8: tl.constexpr, BITS: tl.constexpr, SYMMETRIC: tl.constexpr):
    """fp32 to codes, in the type that they are stored in. IEEE division: an approximate one moves codes."""
    scaled = tl.div_rn(x, scale)
    if FP8:
        return e4m3_bits(scaled)
    else:
        if not SYMMETRIC:
            scaled += zero
        high: tl.constexpr = (1 << (BITS - 1)) - 1
        return round_even(scaled, -1.0 - high, 1.0 * high).to(tl.int8)


@triton.jit
def _scale(top, bottom, FP8: tl.constexpr, BITS: tl.constexpr, SYMMETRIC: tl.constexpr):
    """(scale, zero point) in fp32 from the bits of the largest value, and of the largest negative one, as sizes.
    Symmetric kinds have the larger of the two in ``top``. NaN is above all other bits and goes into the scale."""
    high: tl.constexpr = (1 << (BITS - 1)) - 1
    up = top.to(tl.float32, bitcast=True)
    if SYMMETRIC:
        if FP8:
            scale = tl.div_rn(up, 448.0)
        else:
            scale = tl.div_rn(up, 1.0 * high)
        # a comparison that NaN fails keeps it
        scale = tl.where(scale < _TINY, _TINY, scale)
        return scale, scale * 0.0
    else:
        down = -bottom.to(tl.float32, bitcast=True)
        scale = tl.div_rn(up - down, 2.0 * high + 1.0)
        scale = tl.where(scale < _TINY, _TINY, scale)
        zero = (-1.0 - high) - tl.div_rn(down, scale)
        zero = tl.where(zero == zero, zero, 0.0)
        return scale, round_even(zero, -1.0 - high, 1.0 * high)


@triton.jit
def _extent(x, SYMMETRIC: tl.constexpr):
    """Bits of sizes whose maximum is :func:`_scale`'s ``top`` and ``bottom``. A NaN is in both."""
    size = magnitude(x)
    if SYMMETRIC:
        return size, size
    else:
        nan = size > 0x7F800000
        return tl.where((x > 0) | nan, size, 0), tl.where((x < 0) | nan, size, 0)


@triton.jit
def quantize_tokens(
    x_ptr, codes_ptr, scale_ptr, zero_ptr, x_stride, k, repeat,
    FP8: tl.constexpr, BITS: tl.constexpr, SYMMETRIC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program a row: its scale, then its codes."""
    row = tl.program_id(0).to(tl.int64)
    source = x_ptr + (row // repeat) * x_stride
    columns = tl.arange(0, BLOCK)
    top = tl.zeros([BLOCK], tl.int32)
    bottom = tl.zeros([BLOCK], tl.int32)
    for start in range(0, k, BLOCK):
        x = tl.load(source + start + columns, mask=start + columns < k, other=0.0).to(tl.float32)
        up, down = _extent(x, SYMMETRIC)
        top = tl.maximum(top, up)
        bottom = tl.maximum(bottom, down)
    scale, zero = _scale(tl.max(top, 0), tl.max(bottom, 0), FP8, BITS, SYMMETRIC)
    tl.store(scale_ptr + row, scale)
    if not SYMMETRIC:
        tl.store(zero_ptr + row, zero.to(tl.int32))
    for start in range(0, k, BLOCK):
        inside = start + columns < k
        x = tl.load(source + start + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(codes_ptr + row * k + start + columns, _codes(x, scale, zero, FP8, BITS, SYMMETRIC), mask=inside)


@triton.jit
def tensor_extent(x_ptr, extent_ptr, x_stride, k, SYMMETRIC: tl.constexpr, BLOCK: tl.constexpr):
    """One program a row: int32 ``extent`` [2], zeros before, becomes the bits of the whole tensor's sizes. A maximum
    does not depend on the order in which it is taken."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    top = tl.zeros([BLOCK], tl.int32)
    bottom = tl.zeros([BLOCK], tl.int32)
    for start in range(0, k, BLOCK):
        x = tl.load(x_ptr + row * x_stride + start + columns, mask=start + columns < k, other=0.0).to(tl.float32)
        up, down = _extent(x, SYMMETRIC)
        top = tl.maximum(top, up)
        bottom = tl.maximum(bottom, down)
    tl.atomic_max(extent_ptr, tl.max(top, 0))
    if not SYMMETRIC:
        tl.atomic_max(extent_ptr + 1, tl.max(bottom, 0))


@triton.jit
def quantize_tensor(
    x_ptr, codes_ptr, scale_ptr, zero_ptr, extent_ptr, stored_ptr, stored_zero_ptr, x_stride, k,
    DYNAMIC: tl.constexpr, FP8: tl.constexpr, BITS: tl.constexpr, SYMMETRIC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program a block of a row, all with one scale: stored, or of ``extent``. It is also written to
    ``scale`` [1] and ``zero`` [1]."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if DYNAMIC:
        bottom = tl.load(extent_ptr + 1)
        scale, zero = _scale(tl.load(extent_ptr), bottom, FP8, BITS, SYMMETRIC)
    else:
        scale = tl.load(stored_ptr).to(tl.float32)
        zero = scale * 0.0
        if not SYMMETRIC:
            zero = tl.load(stored_zero_ptr).to(tl.float32)
    inside = columns < k
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(codes_ptr + row * k + columns, _codes(x, scale, zero, FP8, BITS, SYMMETRIC), mask=inside)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(scale_ptr, scale)
        if not SYMMETRIC:
            tl.store(zero_ptr, zero.to(tl.int32))


@triton.jit
def quantize_experts(
    x_ptr, codes_ptr, scale_ptr, zero_ptr, experts_ptr, table_ptr, x_stride, k, repeat, experts, table_stride,
    SCALE_FIELD: tl.constexpr, ZERO_FIELD: tl.constexpr, SCALE_TYPE: tl.constexpr,
    FP8: tl.constexpr, BITS: tl.constexpr, SYMMETRIC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """As :func:`quantize_tensor` with the stored scale of each row's own expert; ``table`` holds its address. Rows of
    experts that are not here are left alone."""
    row = tl.program_id(0).to(tl.int64)
    expert = tl.load(experts_ptr + row)
    if (expert < 0) | (expert >= experts):
        return
    fields = table_ptr + expert.to(tl.int64) * table_stride
    scale = tl.load(tl.load(fields + SCALE_FIELD).to(tl.pointer_type(SCALE_TYPE))).to(tl.float32)
    zero = scale * 0.0
    if not SYMMETRIC:
        zero = tl.load(tl.load(fields + ZERO_FIELD).to(tl.pointer_type(tl.int8))).to(tl.float32)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < k
    x = tl.load(x_ptr + (row // repeat) * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(codes_ptr + row * k + columns, _codes(x, scale, zero, FP8, BITS, SYMMETRIC), mask=inside)
    if tl.program_id(1) == 0:
        tl.store(scale_ptr + row, scale)
        if not SYMMETRIC:
            tl.store(zero_ptr + row, zero.to(tl.int32))


@triton.jit
def quantize_groups(
    x_ptr, codes_ptr, scale_ptr, zero_ptr, x_stride, k, groups, repeat,
    FP8: tl.constexpr, BITS: tl.constexpr, SYMMETRIC: tl.constexpr,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """One program ``GROUPS`` groups of a row, of ``SIZE`` columns each in tiles of ``WIDTH``, a power of two. A short
    last group is filled up with zeros, which every range contains."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    within = tl.arange(0, WIDTH)[None, :]
    columns = group[:, None] * SIZE + within
    inside = (within < SIZE) & (columns < k)
    x = tl.load(x_ptr + (row // repeat) * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    up, down = _extent(x, SYMMETRIC)
    scale, zero = _scale(tl.max(up, 1), tl.max(down, 1), FP8, BITS, SYMMETRIC)
    tl.store(scale_ptr + row * groups + group, scale, mask=group < groups)
    if not SYMMETRIC:
        tl.store(zero_ptr + row * groups + group, zero.to(tl.int32), mask=group < groups)
    codes = _codes(x, scale[:, None], zero[:, None], FP8, BITS, SYMMETRIC)
    tl.store(codes_ptr + row * k + columns, codes, mask=inside)
