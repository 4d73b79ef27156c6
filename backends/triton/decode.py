"""From stored bits to values, inside kernels. Plain integer and fp16 arithmetic, exact, the same on every device: no
type that some device lacks (e4m3 on sm80; gfx942's own e4m3 is another one) takes part."""

from __future__ import annotations

import triton
import triton.language as tl

#: kinds of scales: plain floats; an exponent of two with bias 127 (uint8); e4m3 (as uint8)
PLAIN = tl.constexpr(0)
E8M0 = tl.constexpr(1)
E4M3 = tl.constexpr(2)


@triton.jit
def slot_of(words, slot: tl.constexpr, bits: tl.constexpr):
    """Bits ``[slot * bits, (slot + 1) * bits)`` of int32 words, as int32 from 0."""
    return (words >> (slot * bits)) & ((1 << bits) - 1)


@triton.jit
def fp4_values(codes):
    """e2m1 codes (int32, 0..15) to fp16, exact."""
    # fp16 reads the same exponent with a bias that is 14 higher; its subnormals are e2m1's.
    bits = ((codes & 8) << 12) | ((codes & 7) << 9)
    return bits.to(tl.int16).to(tl.float16, bitcast=True) * 16384.0


@triton.jit
def fp8_values(codes):
    """e4m3fn codes (int32, 0..255) to fp16, exact; the two NaN codes become 480, which packing has to see to."""
    bits = ((codes & 0x80) << 8) | ((codes & 0x7F) << 7)
    return bits.to(tl.int16).to(tl.float16, bitcast=True) * 256.0


@triton.jit
def scale_values(stored, kind: tl.constexpr):
    """Scales as stored to fp32. Every e4m3 scale is finite; exponent 255, NaN, is refused when loading."""
    if kind == 1:
        exponent = stored.to(tl.int32)
        bits = tl.where(exponent == 0, 1 << 22, exponent << 23)
        return bits.to(tl.float32, bitcast=True)
    if kind == 2:
        return fp8_values(stored.to(tl.int32)).to(tl.float32)
    return stored.to(tl.float32)
