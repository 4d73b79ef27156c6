"""The packed layout of torch's int4 op, found by asking the op, so that weights can be had back from it.

``_convert_weight_to_int4pack_for_cpu`` packs for the instruction set at hand and documents nothing. What holds on all
of them: N is cut into blocks of B rows (the last may be shorter); a block of b rows is stored as [K, b/2] bytes, each
with two rows' codes of one column. B and which rows share a byte are learned from packed examples, and the result is
checked on random codes; where the check fails the layout is unknown, and :func:`unpack_by_op` serves.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from .scratch import scratch

_BLOCKS = (64, 32, 16)


def pack(values: Tensor) -> Tensor:
    """Values 0..15 [N, K], any integer dtype, to the op's uint8 [N, K/2]. N % 16 == 0 and K % 2 == 0."""
    packed: Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(values.to(torch.int32).contiguous(), 1)
    return packed


def unpack(packed: Tensor) -> Tensor:
    """The inverse of :func:`pack`: uint8 values [N, K], exact."""
    if block_size() is None:
        return unpack_by_op(packed)
    n, k = packed.shape[0], packed.shape[1] * 2
    out = torch.empty(n, k, dtype=torch.uint8, device="cpu")
    for start, count, size in _runs(n):
        rows = torch.empty(count * size, k, dtype=torch.uint8, device="cpu")
        _nibbles(_stored(packed, start, count, size), rows)
        out[start + _row_order(count, size)] = rows
    return out


def rows(index: Tensor, packed: Tensor) -> Tensor:
    """Rows ``index`` [R], any order, of what :func:`unpack` gives: only the blocks that hold them are unpacked.

    Raises ``IndexError`` for a row below 0 or beyond the last."""
    n, k = packed.shape[0], packed.shape[1] * 2
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < n:
        raise IndexError(f"rows {int(index.min())}..{int(index.max())} of {n}")
    if block_size() is None:
        return unpack_by_op(packed)[index]
    out = torch.empty(index.numel(), k, dtype=torch.uint8, device="cpu")
    for start, count, size in _runs(n):
        here = ((index >= start) & (index < start + count * size)).nonzero().view(-1)
        if here.numel():
            within = index[here] - start
            blocks, place = torch.unique(within // size, return_inverse=True)
            whole = torch.empty(blocks.numel() * size, k, dtype=torch.uint8, device="cpu")
            _nibbles(_stored(packed, start, count, size)[blocks], whole)
            out[here] = whole[place * size + _places(size)[within % size]]
    return out


def unpack_by_op(packed: Tensor) -> Tensor:
    """The inverse through the op itself, on any instruction set: with scale 1, zero 0 and an identity for x, what comes
    out are the codes less 8, exact in bf16. Slow for large K."""
    n, k = packed.shape[0], packed.shape[1] * 2
    unit = torch.tensor([1.0, 0.0], dtype=torch.bfloat16, device="cpu").expand(k // 32, n, 2).contiguous()
    out = torch.empty(n, k, dtype=torch.uint8, device="cpu")
    for start in range(0, k, 64):
        eye = torch.zeros(min(64, k - start), k, dtype=torch.bfloat16, device="cpu")
        eye[torch.arange(len(eye), device="cpu"), start + torch.arange(len(eye), device="cpu")] = 1
        columns = torch.ops.aten._weight_int4pack_mm_for_cpu(eye, packed, 32, unit)
        out[:, start : start + len(eye)] = (columns.t() + 8).to(torch.uint8)
    return out


@cache
def block_size() -> int | None:
    """B, or ``None`` where no supposed layout reproduces the op's."""
    generator = torch.Generator().manual_seed(0)
    for size in _BLOCKS:
        values = torch.randint(0, 16, (2 * size + 16, 64), generator=generator, dtype=torch.uint8, device="cpu")
        if _fits(pack(values), values, size):
            return size
    return None


def _fits(packed: Tensor, values: Tensor, size: int) -> bool:
    k = values.shape[1]
    for start, count, block in _runs(values.shape[0], size):
        rows = torch.empty(count * block, k, dtype=torch.uint8, device="cpu")
        _nibbles(_stored(packed, start, count, block), rows)
        if not torch.equal(rows, values[start + _row_order(count, block)]):
            return False
    return True


def _runs(n: int, size: int | None = None) -> list[tuple[int, int, int]]:
    """(first row, number of blocks, rows a block): whole blocks, then the short one."""
    size = size or block_size() or n
    count, rest = divmod(n, size)
    return [run for run in ((0, count, size), (count * size, 1, rest)) if run[1] and run[2]]


def _stored(packed: Tensor, row: int, count: int, size: int) -> Tensor:
    """The bytes [count, K, size/2] of ``count`` blocks from ``row`` on."""
    width = packed.shape[1]
    return packed.view(-1)[row * width : (row + count * size) * width].view(count, width * 2, size // 2)


def _nibbles(stored: Tensor, out: Tensor) -> None:
    """out [blocks * b, K]: for each block the low nibbles' rows, then the high nibbles'."""
    count, k, half = stored.shape
    turned = scratch("turned", (count, half, k), torch.uint8)
    turned.copy_(stored.transpose(1, 2))
    pairs = out.view(count, 2, half, k)
    torch.bitwise_and(turned, 15, out=pairs[:, 0])
    torch.bitwise_right_shift(turned, 4, out=pairs[:, 1])


@cache
def _block_order(size: int) -> tuple[int, ...]:
    """Rows within a block of ``size``, in the order of :func:`_nibbles`."""
    number = torch.arange(size, dtype=torch.uint8, device="cpu")[:, None].expand(size, 32)
    seen = torch.zeros(size, 32, dtype=torch.uint8, device="cpu")
    for shift in (0, 4):
        rows = torch.empty(size, 32, dtype=torch.uint8, device="cpu")
        _nibbles(_stored(pack((number >> shift) & 15), 0, 1, size), rows)
        seen |= rows << shift
    return tuple(seen[:, 0].tolist())


def _row_order(count: int, size: int) -> Tensor:
    order = torch.tensor(_block_order(size), device="cpu")
    return (torch.arange(count, device="cpu")[:, None] * size + order).view(-1)


def _places(size: int) -> Tensor:
    """Where each row of a block comes out of :func:`_nibbles`."""
    return torch.tensor(_block_order(size), device="cpu").argsort()
