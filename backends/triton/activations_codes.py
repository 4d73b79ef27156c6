"""Bits of small floats inside Triton kernels: rounding to e4m3 and e2m1, decoding, and scales of every stored kind.

All of it is integer arithmetic on fp32 bits, so codes are the same on devices with and without float8 instructions
(sm_80 has none; gfx942 has another float8), and in Triton's interpreter, whose own float8 and bfloat16 casts truncate.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs

#: the interpreter computes bfloat16 on raw bits: there, roundings to it are done by hand
INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))
#: adding and subtracting it rounds |x| < 2^22 to an integer, half to even
_ROUND = tl.constexpr(12582912.0)
#: what scales are stored as
FLOAT, E8M0, E4M3 = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def round_even(x, low, high):
    """fp32 clamped to [low, high], integers within +-2^21, and rounded half to even. NaN becomes ``low``."""
    return (tl.minimum(tl.maximum(x, low), high) + _ROUND) - _ROUND


@triton.jit
def magnitude(x):
    """Bits of ``|x|``: integers in the order of the values, NaN above infinity, so that a maximum keeps NaN."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def e4m3_bits(x):
    """fp32 to the bits of float8_e4m3fn, uint8: clamped to +-448, rounded half to even; NaN stays NaN."""
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    # 448 as fp32; NaN is above infinity
    held = tl.minimum(size, 0x43E00000)
    normal = ((held + 0x7FFFF + ((held >> 20) & 1)) >> 20) - 960
    # one unit in the last place of 2^14 is 2^-9, the step of e4m3's subnormals
    small = (held.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    code = tl.where(held < 0x3C800000, small, normal)
    code = tl.where(size > 0x7F800000, 0x7F, code)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def e4m3_half(bits):
    """Bits of float8_e4m3fn, uint8, to fp16, exactly; NaN stays NaN."""
    wide = bits.to(tl.int16)
    # the exponent of fp16 has another bias; multiplying moves subnormals too
    half = (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).to(tl.float16, bitcast=True) * 256.0
    nan = ((wide & 0x80) << 8 | 0x7E00).to(tl.float16, bitcast=True)
    return tl.where((wide & 0x7F) == 0x7F, nan, half)


@triton.jit
def e2m1_half(code):
    """Codes of e2m1 in the low four bits of int16 to fp16, exactly."""
    half = (((code & 8) << 12) | ((code & 7) << 9)).to(tl.float16, bitcast=True)
    return half * 16384.0


@triton.jit
def e2m1_rounded(x):
    """fp32 to the nearest value of e2m1, ties to even, saturating at 6, in fp32; NaN stays NaN, zeros have no sign."""
    size = tl.abs(x)
    # a comparison that NaN fails keeps it
    size = tl.where(size > 6.0, 6.0, size)
    step = tl.where(size < 2.0, 0.5, tl.where(size < 4.0, 1.0, 2.0))
    rounded = ((size / step + _ROUND) - _ROUND) * step
    return tl.where((x < 0) & (rounded > 0), -rounded, rounded)


@triton.jit
def e2m1_code(value):
    """Values of e2m1 in fp32 to their codes 0..15, int32."""
    size = tl.abs(value)
    code = tl.where(size < 2.0, size * 2.0, tl.where(size < 4.0, size + 2.0, size * 0.5 + 4.0)).to(tl.int32)
    return tl.where(value < 0, code | 8, code)


@triton.jit
def exponent_value(exponent):
    """Exponents with bias 127, any integer type, to the power of two in fp32; 255 is NaN."""
    wide = exponent.to(tl.int32)
    bits = tl.where(wide == 0, 1 << 22, wide << 23)
    return tl.where(wide == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def scale_value(stored, KIND: tl.constexpr):
    """Loaded scales to fp32. ``KIND``: floats, exponents in a byte, or the bits of e4m3."""
    if KIND == E8M0:
        return exponent_value(stored)
    elif KIND == E4M3:
        return e4m3_half(stored).to(tl.float32)
    else:
        return stored.to(tl.float32)


@triton.jit
def rounded_to(x, dtype: tl.constexpr):
    """fp32 rounded to ``dtype``, half to even."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.int32, bitcast=True)
        near = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        x = tl.where(x == x, near.to(tl.float32, bitcast=True), x)
    return x.to(dtype)
