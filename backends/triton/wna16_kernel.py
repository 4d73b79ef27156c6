"""Weights of few bits times activations of 16 bits: the product, the sum of its splits, and the weight alone.

Words and how codes lie in them: :mod:`.layout`. The weight is the left operand of each dot, so that few tokens are the
short side (8) of a matrix instruction and not half of its long one; and codes are turned into numbers in the registers
in which the instruction wants them. A group's scale is applied in fp32, to the sums of its columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .assembly import added, assembly
from .decode import fp4_values, fp8_values, scale_values, slot_of


@triton.jit
def _weights(words, zero, slot: tl.constexpr, FORM: tl.constexpr, BITS: tl.constexpr, ZERO: tl.constexpr,
             DTYPE: tl.constexpr, FAST: tl.constexpr):  # fmt: skip
    """The codes in one slot of [N, R] words, less their zero points, as ``DTYPE``. Exact for every form."""
    if FAST:
        text: tl.constexpr = assembly(slot, FORM, BITS, DTYPE == tl.bfloat16, ZERO)
        # The type has to be written out: a constant that holds it is not taken for one.
        if DTYPE == tl.bfloat16:
            if ZERO:
                pairs = tl.broadcast_to(zero, words.shape)
                values = tl.inline_asm_elementwise(text, "=r,r,r,r", [words, pairs], tl.bfloat16, is_pure=True, pack=2)
            else:
                values = tl.inline_asm_elementwise(text, "=r,r,r", [words], tl.bfloat16, is_pure=True, pack=2)
        elif ZERO:
            pairs = tl.broadcast_to(zero, words.shape)
            values = tl.inline_asm_elementwise(text, "=r,r,r,r", [words, pairs], tl.float16, is_pure=True, pack=2)
        else:
            values = tl.inline_asm_elementwise(text, "=r,r,r", [words], tl.float16, is_pure=True, pack=2)
        return values
    else:
        return _portable(words, zero, slot, FORM, BITS, ZERO, DTYPE)


@triton.jit
def _portable(words, zero, slot: tl.constexpr, FORM: tl.constexpr, BITS: tl.constexpr, ZERO: tl.constexpr,
              DTYPE: tl.constexpr):  # fmt: skip
    codes = slot_of(words, slot, BITS)
    if FORM == 1:
        values = fp4_values(codes).to(DTYPE)
    elif FORM == 2:
        values = fp8_values(codes).to(DTYPE)
    elif ZERO:
        values = (codes - zero).to(DTYPE)
    else:
        values = (codes - (1 << (BITS - 1))).to(DTYPE)
    return values


@triton.jit
def _zeros(pointer, mask, BITS: tl.constexpr, DTYPE: tl.constexpr, FAST: tl.constexpr):
    """Zero points of one group [N, 1] as :func:`_weights` takes them."""
    zero = tl.load(pointer, mask=mask, other=0).to(tl.int32)
    if FAST:
        offset: tl.constexpr = added(BITS, DTYPE == tl.bfloat16)
        zero = (-(zero + offset)).to(tl.float32).to(DTYPE)
        return zero[:, None]
    else:
        return zero[:, None]


@triton.jit
def product(
    x, packed, scale, zero, columns, bias, divisor, y,
    m, n, k, stride_x, row_words, tiles, groups,
    FORM: tl.constexpr, BITS: tl.constexpr, RUN: tl.constexpr, GROUP_RUNS: tl.constexpr, SCALE: tl.constexpr,
    ZERO: tl.constexpr, COLUMNS: tl.constexpr, WHOLE: tl.constexpr, BIAS: tl.constexpr, DIVISOR: tl.constexpr,
    DTYPE: tl.constexpr, FAST: tl.constexpr, EXACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PARTS: tl.constexpr, PER_SCALE: tl.constexpr,
    STAGES: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """``y`` [M, N], or with ``PARTS`` fp32 parts [splits, M, N], one for each program of the second axis, without bias
    and divisor.

    ``RUN``: columns of a slot. ``GROUP_RUNS``: runs of a group, 0 where all columns are one. ``k``: columns, of which
    the last words may have more unless ``WHOLE``. ``PER_SCALE``: runs that are summed before a scale is applied; it
    divides ``GROUP_RUNS`` and the slots of a word. ``EXACT``: compute in fp32 (the interpreter has no bf16). ``WIDE``:
    fp32 results.
    """
    SLOTS: tl.constexpr = 32 // BITS
    block = tl.program_id(0)
    split = tl.program_id(1)
    # Blocks of tokens change fastest: those that run at once read the same weights.
    block_n = block // tl.cdiv(m, BLOCK_M)
    block_m = block % tl.cdiv(m, BLOCK_M)
    rows = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    tokens = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    in_rows = rows < n
    in_tokens = tokens < m
    per_split = tl.cdiv(tiles, tl.num_programs(1))
    first = split * per_split
    last = tl.minimum(first + per_split, tiles)

    run = tl.arange(0, RUN)
    word_rows = packed + rows.to(tl.int64)[:, None] * row_words + run[None, :]
    x_rows = x + tokens.to(tl.int64)[None, :] * stride_x
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    factor = tl.zeros((BLOCK_N,), tl.float32)
    shift = tl.zeros((BLOCK_N, 1), DTYPE if FAST else tl.int32)
    if GROUP_RUNS == 0:
        factor = scale_values(tl.load(scale + rows, mask=in_rows, other=0), SCALE)
        if ZERO:
            shift = _zeros(zero + rows, in_rows, BITS, DTYPE, FAST)
    for tile in tl.range(first, last, num_stages=STAGES):
        words = tl.load(word_rows + tile * RUN, mask=in_rows[:, None], other=0)
        part = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        for slot in tl.static_range(SLOTS):
            column = (tile * SLOTS + slot) * RUN + run
            if COLUMNS:
                source = tl.load(columns + column, mask=column < k, other=-1)
                present = (source >= 0)[:, None] & in_tokens[None, :]
                inputs = tl.load(x_rows + source[:, None], mask=present, other=0.0)
            elif WHOLE:
                inputs = tl.load(x_rows + column[:, None], mask=in_tokens[None, :], other=0.0)
            else:
                present = (column < k)[:, None] & in_tokens[None, :]
                inputs = tl.load(x_rows + column[:, None], mask=present, other=0.0)
            if GROUP_RUNS > 0 and slot % PER_SCALE == 0:
                # the words past the last group are padding, which meets inputs of zero
                group = tl.minimum((tile * SLOTS + slot) // GROUP_RUNS, groups - 1).to(tl.int64)
                factor = scale_values(tl.load(scale + group * n + rows, mask=in_rows, other=0), SCALE)
                if ZERO:
                    shift = _zeros(zero + group * n + rows, in_rows, BITS, DTYPE, FAST)
            weights = _weights(words, shift, slot, FORM, BITS, ZERO, DTYPE, FAST)
            if EXACT:
                part = tl.dot(weights.to(tl.float32), inputs.to(tl.float32), part, input_precision="ieee")
            else:
                part = tl.dot(weights, inputs, part)
            if GROUP_RUNS > 0 and (slot + 1) % PER_SCALE == 0:
                total += part * factor[:, None]
                part = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        if GROUP_RUNS == 0:
            total += part
    if GROUP_RUNS == 0:
        total = total * factor[:, None]
    place = tokens.to(tl.int64)[None, :] * n + rows[:, None]
    inside = in_rows[:, None] & in_tokens[None, :]
    if PARTS:
        tl.store(y + split.to(tl.int64) * m * n + place, total, mask=inside)
    else:
        if DIVISOR:
            total = total / tl.load(divisor)
        if BIAS:
            total += tl.load(bias + rows, mask=in_rows, other=0).to(tl.float32)[:, None]
        tl.store(y + place, total.to(tl.float32 if WIDE else DTYPE), mask=inside)


@triton.jit
def sum_splits(parts, bias, divisor, y, n, count, splits, BIAS: tl.constexpr, DIVISOR: tl.constexpr,
               DTYPE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """``y`` [M, N], flat of ``count`` elements, from fp32 parts [splits, M, N], always summed in the same order."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    total = tl.load(parts + place, mask=inside, other=0.0)
    for split in range(1, splits):
        total += tl.load(parts + split * tl.cast(count, tl.int64) + place, mask=inside, other=0.0)
    if DIVISOR:
        total = total / tl.load(divisor)
    if BIAS:
        total += tl.load(bias + place % n, mask=inside, other=0).to(tl.float32)
    tl.store(y + place, total.to(DTYPE), mask=inside)


@triton.jit
def weight(
    packed, scale, zero, columns, divisor, y,
    n, k, inner, row_words, groups,
    FORM: tl.constexpr, BITS: tl.constexpr, RUN: tl.constexpr, GROUP_RUNS: tl.constexpr, SCALE: tl.constexpr,
    ZERO: tl.constexpr, COLUMNS: tl.constexpr, DIVISOR: tl.constexpr, DTYPE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """``y`` [N, K], the weight in ``DTYPE``, columns in the order of the inputs: what many tokens are multiplied by."""
    SLOTS: tl.constexpr = 32 // BITS
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    tile = tl.program_id(1)
    in_rows = rows < n
    run = tl.arange(0, RUN)
    wide = rows.to(tl.int64)[:, None]
    words = tl.load(packed + wide * row_words + tile * RUN + run[None, :], mask=in_rows[:, None], other=0)
    for slot in tl.static_range(SLOTS):
        column = (tile * SLOTS + slot) * RUN + run
        if COLUMNS:
            column = tl.load(columns + column, mask=column < inner, other=-1)
        group = 0
        if GROUP_RUNS > 0:
            group = tl.minimum((tile * SLOTS + slot) // GROUP_RUNS, groups - 1)
        at = tl.cast(group, tl.int64) * n + rows
        factor = scale_values(tl.load(scale + at, mask=in_rows, other=0), SCALE)[:, None]
        shift = 0
        if ZERO:
            shift = _zeros(zero + at, in_rows, BITS, DTYPE, False)
        values = _portable(words, shift, slot, FORM, BITS, ZERO, tl.float32) * factor
        if DIVISOR:
            values = values / tl.load(divisor)
        inside = in_rows[:, None] & ((column >= 0) & (column < k))[None, :]
        tl.store(y + wide * k + column[None, :], values.to(DTYPE), mask=inside)
