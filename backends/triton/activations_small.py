"""Triton kernels that quantize activations to mx and nvfp4 as :mod:`quantdispatch.numerics.microscaling` does, step by
step in the same dtypes.

Either fake-quantized, in x's own dtype, for weights that are dequantized; or as codes and scales for instructions that
take block scales.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .activations_codes import e2m1_code, e2m1_rounded, e4m3_bits, e4m3_half, exponent_value, magnitude, rounded_to


@triton.jit
def _mx_exponent(size, BITS: tl.constexpr, dtype: tl.constexpr):
    """int32 exponents with bias 127 from the bits of a group's largest value in fp32. 255 is NaN."""
    # in the layout of the inputs' own dtype, whose largest and smallest exponents are told from the rest
    if dtype == tl.float16:
        value = size.to(tl.float32, bitcast=True).to(tl.float16)
        field = (value.to(tl.int16, bitcast=True).to(tl.int32) + (1 << 8)) >> 10
        bias = 15
    else:
        field = (size.to(tl.int64) + (1 << 21)) >> 23
        field = field.to(tl.int32)
        bias = 127
    largest: tl.constexpr = 2 if BITS == 4 else 8
    exponent = tl.minimum(tl.maximum(field - bias + 127 - largest, 0), 255)
    exponent = tl.where(field >= 2 * bias + 1, 255, tl.where(field == 0, 0, exponent))
    if dtype == tl.float16:
        # a scale that float16 does not have is replaced by one
        exponent = tl.where(exponent < 127 - 24, 127, exponent)
    return exponent


@triton.jit
def _nv_scale(size, overall, dtype: tl.constexpr):
    """(bits of e4m3, uint8; what codes are multiplied by, fp32) from the bits of a group's largest value."""
    # the division is rounded to the inputs' dtype before the global scale comes in
    sixth = rounded_to(tl.div_rn(size.to(tl.float32, bitcast=True), 6.0), dtype).to(tl.float32)
    bits = e4m3_bits(overall * sixth)
    # 0.125 stands in for a scale that rounds to zero
    bits = tl.where((bits & 0x7F) == 0, 0x20, bits).to(tl.uint8)
    return bits, tl.div_rn(e4m3_half(bits).to(tl.float32), overall)


@triton.jit
def _round(x, scale, BITS: tl.constexpr):
    """fp32 over its scale, as the nearest value of the format, fp32."""
    scaled = tl.div_rn(x, scale) + 0.0
    if BITS == 4:
        return e2m1_rounded(scaled)
    else:
        return e4m3_half(e4m3_bits(scaled)).to(tl.float32)


@triton.jit
def fake_quantize(
    x_ptr, out_ptr, global_ptr, x_stride, k, groups, repeat,
    NV: tl.constexpr, BITS: tl.constexpr, SIZE: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """x [R, K] to [R, K] in its own dtype, ``GROUPS`` groups of ``SIZE`` columns of a row a program. ``global``: fp32
    [1], of nvfp4."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    columns = group[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    inside = (group < groups)[:, None]
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    x = tl.load(x_ptr + (row // repeat) * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    size = tl.max(magnitude(x), 1)
    if NV:
        _, scale = _nv_scale(size, tl.load(global_ptr).to(tl.float32), dtype)
    else:
        scale = exponent_value(_mx_exponent(size, BITS, dtype))
    value = _round(x, scale[:, None], BITS) * scale[:, None]
    tl.store(out_ptr + row * k + columns, rounded_to(value, dtype), mask=inside)


@triton.jit
def fake_quantize_experts(
    x_ptr, out_ptr, experts_ptr, table_ptr, x_stride, k, groups, repeat, experts, table_stride,
    GLOBAL_FIELD: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """nvfp4 as in :func:`fake_quantize`, with the global scale of each row's own expert; ``table`` holds its address.
    Rows of experts that are not here are left alone."""
    row = tl.program_id(0).to(tl.int64)
    expert = tl.load(experts_ptr + row)
    if (expert < 0) | (expert >= experts):
        return
    address = tl.load(table_ptr + expert.to(tl.int64) * table_stride + GLOBAL_FIELD)
    overall = tl.load(address.to(tl.pointer_type(tl.float32)))
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    columns = group[:, None] * 16 + tl.arange(0, 16)[None, :]
    inside = (group < groups)[:, None]
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    x = tl.load(x_ptr + (row // repeat) * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    _, scale = _nv_scale(tl.max(magnitude(x), 1), overall, dtype)
    value = _round(x, scale[:, None], 4) * scale[:, None]
    tl.store(out_ptr + row * k + columns, rounded_to(value, dtype), mask=inside)


@triton.jit
def quantize_small(
    x_ptr, codes_ptr, scale_ptr, global_ptr, x_stride, k, groups,
    NV: tl.constexpr, BITS: tl.constexpr, SIZE: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """x [R, K] to codes uint8 [R, K / 2] (e2m1, the first in the low half) or [R, K] (e4m3), and scales uint8 [R, G],
    exponents or the bits of e4m3."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    columns = group[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    inside = (group < groups)[:, None]
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    size = tl.max(magnitude(x), 1)
    if NV:
        stored, scale = _nv_scale(size, tl.load(global_ptr).to(tl.float32), dtype)
    else:
        exponent = _mx_exponent(size, BITS, dtype)
        scale = exponent_value(exponent)
        stored = exponent.to(tl.uint8)
    tl.store(scale_ptr + row * groups + group, stored, mask=group < groups)
    if BITS == 4:
        code = e2m1_code(_round(x, scale[:, None], 4))
        low, high = tl.split(tl.reshape(code, (GROUPS, SIZE // 2, 2)))
        bytes_ = group[:, None] * (SIZE // 2) + tl.arange(0, SIZE // 2)[None, :]
        tl.store(codes_ptr + row * (k // 2) + bytes_, (low | (high << 4)).to(tl.uint8), mask=inside)
    else:
        tl.store(codes_ptr + row * k + columns, e4m3_bits(tl.div_rn(x, scale[:, None]) + 0.0), mask=inside)
