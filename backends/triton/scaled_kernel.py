"""Products of codes with a scale a group on both sides, by the matrix instructions that take scales (sm100, sm120)."""

from __future__ import annotations

import triton
import triton.language as tl

from .decode import fp4_values, fp8_values, scale_values


@triton.jit
def _values(codes, scale, FP4: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr):
    """fp32 [R, C] of codes [R, C / 2] or [R, C] and scales [R, C / GROUP]: what the instruction makes of them."""
    if FP4:
        low = fp4_values((codes & 15).to(tl.int32))
        high = fp4_values((codes >> 4).to(tl.int32))
        values = tl.interleave(low, high).to(tl.float32)
    else:
        values = fp8_values(codes.to(tl.uint8, bitcast=True).to(tl.int32)).to(tl.float32)
    factors = scale_values(scale, KIND)
    shape: tl.constexpr = (values.shape[0], values.shape[1] // GROUP, GROUP)
    wide = tl.reshape(values, shape) * tl.expand_dims(factors, 2)
    return tl.reshape(wide, values.shape)


@triton.jit
def scaled_product(
    x, x_scale, weight, scale, bias, x_divisor, divisor, y,
    m, n, k,
    X_FP4: tl.constexpr, W_FP4: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr, BIAS: tl.constexpr,
    DIVISOR: tl.constexpr, NATIVE: tl.constexpr, OUT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """``y`` [M, N] of ``x`` [M, K] and ``weight`` [N, K], e4m3 or two e2m1 a byte, low half first; ``x_scale`` and
    ``scale`` [.., K / GROUP], exponents or e4m3 as bytes (``KIND`` of :mod:`.decode`). ``NATIVE``: by the instruction;
    else decoded, for the interpreter."""
    X_STEP: tl.constexpr = 2 if X_FP4 else 1
    W_STEP: tl.constexpr = 2 if W_FP4 else 1
    block = tl.program_id(0)
    tokens = (block % tl.cdiv(m, BLOCK_M)) * BLOCK_M + tl.arange(0, BLOCK_M)
    rows = (block // tl.cdiv(m, BLOCK_M)) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_tokens = (tokens < m)[:, None]
    in_rows = (rows < n)[:, None]
    wide_tokens = tokens.to(tl.int64)[:, None]
    wide_rows = rows.to(tl.int64)[:, None]
    x_bytes = tl.arange(0, BLOCK_K // X_STEP)[None, :]
    w_bytes = tl.arange(0, BLOCK_K // W_STEP)[None, :]
    groups = tl.arange(0, BLOCK_K // GROUP)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for tile in range(0, tl.cdiv(k, BLOCK_K)):
        x_at = tile * (BLOCK_K // X_STEP) + x_bytes
        w_at = tile * (BLOCK_K // W_STEP) + w_bytes
        group = tile * (BLOCK_K // GROUP) + groups
        a = tl.load(x + wide_tokens * (k // X_STEP) + x_at, mask=in_tokens & (x_at < k // X_STEP), other=0)
        b = tl.load(weight + wide_rows * (k // W_STEP) + w_at, mask=in_rows & (w_at < k // W_STEP), other=0)
        in_group = group < k // GROUP
        a_scale = tl.load(x_scale + wide_tokens * (k // GROUP) + group, mask=in_tokens & in_group, other=0)
        b_scale = tl.load(scale + wide_rows * (k // GROUP) + group, mask=in_rows & in_group, other=0)
        if NATIVE:
            if KIND == 2:
                a_scale = a_scale.to(tl.float8e4nv, bitcast=True)
                b_scale = b_scale.to(tl.float8e4nv, bitcast=True)
            if not X_FP4:
                a = a.to(tl.float8e4nv, bitcast=True)
            if not W_FP4:
                b = b.to(tl.float8e4nv, bitcast=True)
            X_FORM: tl.constexpr = "e2m1" if X_FP4 else "e4m3"
            W_FORM: tl.constexpr = "e2m1" if W_FP4 else "e4m3"
            total = tl.dot_scaled(a, a_scale, X_FORM, tl.trans(b), b_scale, W_FORM, total)
        else:
            left = _values(a, a_scale, X_FP4, GROUP, KIND)
            right = _values(b, b_scale, W_FP4, GROUP, KIND)
            total = tl.dot(left, tl.trans(right), total, input_precision="ieee")
    if DIVISOR:
        total = total / (tl.load(x_divisor) * tl.load(divisor))
    if BIAS:
        total += tl.load(bias + rows, mask=rows < n, other=0).to(tl.float32)[None, :]
    tl.store(y + wide_tokens * n + rows[None, :], total.to(OUT), mask=in_tokens & (rows < n)[None, :])
