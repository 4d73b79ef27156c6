"""One tile of W x^T inside Triton kernels: quantized weights with quantized inputs, or with inputs of 16 bits.

The accumulator is [BN, BM], outputs by rows of x: decoded weights are then the operand that matrix instructions take
from registers, and few rows of x make a narrow tile instead of a padded one.

``WEIGHT``: ``"int8"`` and ``"fp8"`` are [N, K], a byte a code; ``"int4"`` and ``"fp4"`` are [N, K' / 2] bytes, K' being
K up to a multiple of two ``BK``: of each run of 2 BK columns the low halves hold the first BK and the high halves the
rest, so that both are contiguous in x. int4 is two's complement.
``INPUT``: ``"int8"``, ``"fp8"`` (uint8 bits) or ``"half"``, x itself. ``DOT``: the dtype that is multiplied.
Weight scales and zero points are [G, SR]: group by output, or by block of ``ROWS`` outputs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .activations_codes import INTERPRETED, e2m1_half, e4m3_half, scale_value


@triton.jit
def fp8_values(bits, DOT: tl.constexpr, FP8: tl.constexpr):
    """uint8 bits of e4m3fn as the operand. ``FP8``: ``"nv"`` where the device has the type; ``"b8"`` where its e4m3 is
    the FNUZ one, whose values are half as large, whose -0 is NaN, and which has no other NaN; ``"bits"`` elsewhere."""
    if DOT == tl.float8e4nv:
        return bits.to(tl.float8e4nv, bitcast=True)
    elif DOT == tl.float8e4b8:
        size = bits & 0x7F
        bits = tl.where(size == 0x7F, 0x80, tl.where(size == 0, 0, bits)).to(tl.uint8)
        return bits.to(tl.float8e4b8, bitcast=True)
    elif FP8 == "nv" and not INTERPRETED:
        return bits.to(tl.float8e4nv, bitcast=True).to(DOT)
    else:
        return e4m3_half(bits).to(DOT)


@triton.jit
def int4_values(packed, HIGH: tl.constexpr, DOT: tl.constexpr):
    """The codes in one half of each byte as the operand, exactly."""
    if DOT == tl.int8:
        signed = packed.to(tl.int8, bitcast=True)
        return (signed >> 4) if HIGH else ((signed << 4).to(tl.int8) >> 4)
    else:
        shifted = (packed ^ 0x88).to(tl.int16)
        code = (shifted >> 4) if HIGH else (shifted & 15)
        if DOT == tl.float16:
            # 1024 has steps of one: its low bits are the code
            return (code | 0x6400).to(tl.float16, bitcast=True) - 1032.0
        elif DOT == tl.bfloat16:
            return (code | 0x4300).to(tl.bfloat16, bitcast=True) - 136.0
        else:
            return (code - 8).to(DOT)


@triton.jit
def fp4_values(packed, HIGH: tl.constexpr, DOT: tl.constexpr):
    """As :func:`int4_values`, of e2m1."""
    code = packed.to(tl.int16)
    return e2m1_half((code >> 4) if HIGH else (code & 15)).to(DOT)


@triton.jit
def input_values(x, INPUT: tl.constexpr, DOT: tl.constexpr, FP8: tl.constexpr):
    if INPUT == "fp8":
        return fp8_values(x, DOT, FP8)
    elif INPUT == "int8" and DOT == tl.int8:
        return x
    else:
        return x.to(DOT)


@triton.jit
def _scaled(values, s_ptr, outputs, within, start, s_rows, BK: tl.constexpr, GROUP: tl.constexpr, SCALE: tl.constexpr):
    """Weights [BN, BK] times the scales of their groups, which are smaller than the tile; exact where both are short
    enough for the operand's dtype."""
    BN: tl.constexpr = values.shape[0]
    group = start // GROUP + tl.arange(0, BK // GROUP)
    last = within // GROUP
    where = (group[None, :] < last) & (outputs >= 0)[:, None]
    scale = scale_value(tl.load(s_ptr + group[None, :] * s_rows + outputs[:, None], mask=where, other=0), SCALE)
    blocks = tl.reshape(values, (BN, BK // GROUP, GROUP)) * scale.to(values.dtype)[:, :, None]
    return tl.reshape(blocks, (BN, BK))


@triton.jit
def _step(
    acc, sums, w, x, start, s_ptr, z_ptr, xs_ptr, xs_rows, blocks, k, s_rows, zero,
    CORRECT: tl.constexpr, ZERO: tl.constexpr, GROUP: tl.constexpr, XGROUP: tl.constexpr, SCALE: tl.constexpr,
    FOLD: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Add BK columns to the accumulator. ``zero`` [BN]: of whole rows; those of groups are loaded here."""
    if GROUP and not FOLD:
        # columns filled up beyond K belong to no group, and count nothing
        row = tl.minimum(start // GROUP, (k - 1) // GROUP) * s_rows
        if ZERO:
            zero = tl.load(z_ptr + row + blocks)
    if ZERO and not CORRECT:
        w -= zero.to(w.dtype)[:, None]
    if FOLD:
        w = _scaled(w, s_ptr, blocks, k, start, s_rows, BK, GROUP, SCALE)
    whole: tl.constexpr = acc.dtype
    out: tl.constexpr = tl.int32 if w.dtype == tl.int8 else tl.float32
    # Hopper adds up float8 products in fewer bits than fp32 unless told how often to move them out
    imprecise: tl.constexpr = BK if w.dtype.is_fp8() else None
    if (GROUP and not FOLD) or XGROUP:
        part = tl.dot(w, x, out_dtype=out, max_num_imprecise_acc=imprecise)
        if CORRECT:
            part -= zero.to(tl.int32)[:, None] * tl.sum(x.to(tl.int32), 0)[None, :]
        part = part.to(tl.float32)
        if GROUP and not FOLD:
            part *= scale_value(tl.load(s_ptr + row + blocks), SCALE)[:, None]
        if XGROUP:
            part *= tl.load(xs_ptr + xs_rows + tl.minimum(start, k - 1) // XGROUP)[None, :]
        acc += part.to(whole)
    else:
        acc = tl.dot(w, x, acc, out_dtype=out, max_num_imprecise_acc=imprecise)
        if CORRECT:
            sums += tl.sum(x.to(tl.int32), 0)
    return acc, sums


@triton.jit
def product(
    x_ptr, x_rows, w_ptr, s_ptr, z_ptr, xs_ptr, xs_rows, outputs, k, first, last, w_stride, s_rows,
    WEIGHT: tl.constexpr, INPUT: tl.constexpr, DOT: tl.constexpr, FP8: tl.constexpr, INTEGER: tl.constexpr,
    ZERO: tl.constexpr, CORRECT: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, XGROUP: tl.constexpr,
    SCALE: tl.constexpr, FOLD: tl.constexpr, EVEN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """[BN, BM] over the columns [first, last) of K, both multiples of a step; int32 if ``INTEGER``, else fp32.

    ``x_rows`` int64 [BM]: offsets of rows of x, valid ones all. ``outputs`` [BN]: valid ones all. ``xs_rows``: offsets
    of rows of the inputs' group scales. Scales of groups are applied here, those of rows and columns are not.
    """
    BN: tl.constexpr = outputs.shape[0]
    BM: tl.constexpr = x_rows.shape[0]
    columns = tl.arange(0, BK)
    blocks = outputs // ROWS
    weights = w_ptr + outputs.to(tl.int64)[:, None] * w_stride
    inputs = x_ptr + x_rows[None, :]
    acc = tl.zeros([BN, BM], tl.int32 if INTEGER else tl.float32)
    sums = tl.zeros([BM], tl.int32)
    zero = tl.zeros([BN], tl.int8)
    if ZERO and not GROUP:
        zero = tl.load(z_ptr + blocks)
    if WEIGHT == "int8" or WEIGHT == "fp8":
        for start in range(first, last, BK):
            inside = start + columns < k
            if EVEN:
                w = tl.load(weights + start + columns[None, :])
                x = tl.load(inputs + start + columns[:, None])
            else:
                w = tl.load(weights + start + columns[None, :], mask=inside[None, :], other=0)
                x = tl.load(inputs + start + columns[:, None], mask=inside[:, None], other=0)
            w = fp8_values(w, DOT, FP8) if WEIGHT == "fp8" else (w if DOT == tl.int8 else w.to(DOT))
            acc, sums = _step(
                acc, sums, w, input_values(x, INPUT, DOT, FP8), start, s_ptr, z_ptr, xs_ptr, xs_rows, blocks, k,
                s_rows, zero, CORRECT, ZERO, GROUP, XGROUP, SCALE, FOLD, BK,
            )  # fmt: skip
    else:
        for start in range(first, last, 2 * BK):
            packed = tl.load(weights + start // 2 + columns[None, :])
            for half in tl.static_range(2):
                at = start + half * BK
                if EVEN:
                    x = tl.load(inputs + at + columns[:, None])
                else:
                    x = tl.load(inputs + at + columns[:, None], mask=(at + columns < k)[:, None], other=0)
                w = int4_values(packed, half, DOT) if WEIGHT == "int4" else fp4_values(packed, half, DOT)
                acc, sums = _step(
                    acc, sums, w, input_values(x, INPUT, DOT, FP8), at, s_ptr, z_ptr, xs_ptr, xs_rows, blocks, k,
                    s_rows, zero, CORRECT, ZERO, GROUP, XGROUP, SCALE, FOLD, BK,
                )  # fmt: skip
    if CORRECT and not (GROUP or XGROUP):
        acc -= zero.to(tl.int32)[:, None] * sums[None, :]
    return acc


@triton.jit
def finish(
    acc, s_ptr, sums_ptr, global_ptr, bias_ptr, xs, xz, outputs,
    GROUP: tl.constexpr, ROWS: tl.constexpr, SCALE: tl.constexpr, FACTOR: tl.constexpr,
):  # fmt: skip
    """The accumulator [BN, BM] as y^T in fp32. Scales of whole rows of W are applied here; ``xs`` fp32 [BM] or a
    number, ``xz`` int32 [BM] or ``None``; ``sums`` [N]: what a zero point of the inputs of one takes away, int32 beside
    an int32 accumulator. ``FACTOR``: of products whose operands were not their values."""
    if xz is not None:
        sums = tl.load(sums_ptr + outputs)
        acc -= sums[:, None] * xz.to(sums.dtype)[None, :]
    y = acc.to(tl.float32) * FACTOR
    if not GROUP:
        y *= scale_value(tl.load(s_ptr + outputs // ROWS), SCALE)[:, None]
    if xs is not None:
        y *= xs[None, :]
    if global_ptr is not None:
        y = tl.div_rn(y, tl.load(global_ptr).to(tl.float32))
    if bias_ptr is not None:
        y += tl.load(bias_ptr + outputs).to(tl.float32)[:, None]
    return y
