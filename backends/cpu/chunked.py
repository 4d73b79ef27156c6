"""x @ W^T with W decoded a few hundred rows at a time into a reused buffer: the route for what no op computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .bitplanes import unpack_planes
from .float8 import FP8_SCALE, decode_fp8
from .microfloat_planes import FP4, FP6, SMALL_SCALE, decode_floats, padded_columns
from .scales import scales_to_float
from .scratch import chunk_rows, scratch

FP8 = 0
#: what decoded floats must be multiplied with
_FACTORS = {FP8: FP8_SCALE, FP4: SMALL_SCALE, FP6: SMALL_SCALE}


def chunked_mm(
    x: Tensor,
    codes: Tensor,
    scale: Tensor | None,
    zero: Tensor | None,
    columns: Tensor | None,
    bits: int,
    block_rows: int,
    block_columns: int,
) -> Tensor:
    """x [M, K] times the transpose of the weight [N, K] = (codes - zero) * scale; the result is fp32 [M, N].

    The product is taken in x's dtype, fp32 or bf16. ``codes``: uint8 bit planes of 1..7 ``bits``, int8 (8), int8 views
    of float8 (``FP8``), or int16 planes of fp4 and fp6 (``FP4``, ``FP6``). ``scale`` (floats, float8_e4m3fn, or uint8
    exponents) and int8 ``zero``: [ceil(N/block_rows), ceil(K/block_columns)], or one a group where ``columns`` [K]
    names each column's group; ``scale=None``: the caller multiplies rows of the result.
    """
    if bits in _FACTORS:
        # before the product and not after it: products of the smallest scales stay normal numbers
        x = x * _FACTORS[bits]
    n, k = codes.shape[0], x.shape[1]
    y = torch.empty(x.shape[0], n, dtype=x.dtype, device="cpu")
    for start in range(0, n, step := chunk_rows(k)):
        stop = min(start + step, n)
        blocks = _Blocks(start, stop, k, block_rows, block_columns, columns)
        weight = _decode(codes if stop - start == n else codes[start:stop], blocks, zero, bits)
        if scale is not None:
            blocks.apply(weight, scales_to_float(blocks.rows_of(scale)), torch.mul)
        if x.dtype != torch.float32:
            weight = scratch("narrow", (stop - start, k), x.dtype).copy_(weight)
        # the out= forms are not touched by autocast, which would cast the operands
        if x.shape[0] == 1:
            torch.mv(weight, x.reshape(-1), out=y.reshape(-1)[start:stop])
        else:
            torch.mm(x, weight.t(), out=y[:, start:stop])
    return y.float()


def _decode(codes: Tensor, blocks: _Blocks, zero: Tensor | None, bits: int) -> Tensor:
    """codes - zero of some rows, fp32 in scratch; floats come out divided by their factor."""
    rows, k = blocks.stop - blocks.start, blocks.k
    weight = scratch("weight", (rows, k), torch.float32)
    if bits == FP8:
        decode_fp8(codes, scratch("halves", (rows, k), torch.int16), weight)
        return weight
    if bits in (FP4, FP6):
        halves = scratch("halves", (rows, padded_columns(k, bits)), torch.int16)
        decode_floats(codes, bits, halves)
        return weight.copy_(halves.view(torch.float16)[:, :k])
    if bits == 8:
        weight.copy_(codes)
        if zero is not None:
            blocks.apply(weight, blocks.rows_of(zero).float(), torch.sub)
        return weight
    whole = scratch("codes", (rows, -(-k // 8) * 8), torch.uint8)
    unpack_planes(codes, bits, whole)
    half = 1 << (bits - 1)
    if zero is None:
        whole.sub_(half)
    else:
        # Codes and zero points of up to 7 bits differ by less than 128: subtracting bytes is exact and a quarter of
        # the traffic. The view as uint8 wraps to what int8 holds.
        blocks.apply(whole[:, :k], (blocks.rows_of(zero) + half).view(torch.uint8), torch.sub)
    return weight.copy_(whole.view(torch.int8)[:, :k])


class _Blocks:
    """Which scale belongs to which element of rows ``start`` to ``stop``."""

    def __init__(self, start: int, stop: int, k: int, rows: int, columns: int, index: Tensor | None) -> None:
        self.start, self.stop, self.k = start, stop, k
        self.block_rows, self.block_columns, self.index = rows, columns, index

    def rows_of(self, values: Tensor) -> Tensor:
        """[ceil(N/block_rows), G] to [stop - start, G]."""
        if self.block_rows == 1:
            return values[self.start : self.stop]
        first, last = self.start // self.block_rows, -(-self.stop // self.block_rows)
        offset = first * self.block_rows
        each = values[first:last].repeat_interleave(self.block_rows, dim=0)
        return each[self.start - offset : self.stop - offset]

    def apply(self, weight: Tensor, values: Tensor, operation: Any) -> None:
        """weight [rows, K] = operation(weight, values [rows, G] spread over their columns), in place."""
        if self.index is not None:
            operation(weight, values.index_select(1, self.index), out=weight)
            return
        whole = self.k - self.k % self.block_columns
        groups = whole // self.block_columns
        if groups:
            part = weight[:, :whole].view(-1, groups, self.block_columns)
            operation(part, values[:, :groups].unsqueeze(-1), out=part)
        if whole < self.k:
            operation(weight[:, whole:], values[:, groups:], out=weight[:, whole:])
