"""Scales and zero points in the order in which the native kernels read them: by tiles of 64 outputs, [groups][width].

Outputs are padded to a multiple of 16 with zeros; the last tile may be narrower. A layer's are one flat tensor.
"""

from __future__ import annotations

import torch
from torch import Tensor

TILE = 64
#: outputs come in multiples of this
UNIT = 16


def padded(n: int) -> int:
    """Outputs with the padding."""
    return -(-n // UNIT) * UNIT


def to_tiles(values: Tensor) -> Tensor:
    """[N, G] of any dtype to the flat tensor of ``padded(N) * G`` values."""
    n, groups = values.shape
    whole = n // TILE * TILE
    out = torch.zeros(padded(n) * groups, dtype=values.dtype, device="cpu")
    if whole:
        out[: whole * groups].view(-1, groups, TILE).copy_(values[:whole].view(-1, TILE, groups).transpose(1, 2))
    if n > whole:
        out[whole * groups :].view(groups, -1)[:, : n - whole].copy_(values[whole:].t())
    return out


def from_tiles(flat: Tensor, n: int, groups: int) -> Tensor:
    """The inverse of :func:`to_tiles`: fresh [N, G]."""
    whole = n // TILE * TILE
    out = torch.empty(n, groups, dtype=flat.dtype, device="cpu")
    if whole:
        out[:whole].view(-1, TILE, groups).copy_(flat[: whole * groups].view(-1, groups, TILE).transpose(1, 2))
    if n > whole:
        out[whole:].copy_(flat[whole * groups :].view(groups, -1)[:, : n - whole].t())
    return out


def rows_of_tiles(flat: Tensor, n: int, groups: int, index: Tensor) -> Tensor:
    """Rows ``index`` [R] of what :func:`from_tiles` gives."""
    tile = index // TILE
    width = (padded(n) - tile * TILE).clamp_(max=TILE)
    start = tile * (TILE * groups) + index % TILE
    places = start[:, None] + torch.arange(groups, device="cpu") * width[:, None]
    return flat[places]


def join_nibbles(flat: Tensor, n: int, groups: int) -> Tensor:
    """Flat uint8 values of 0..15 two to a byte: within a tile's group those of its first half low, the others high."""
    out = torch.empty(flat.numel() // 2, dtype=torch.uint8, device="cpu")
    for start, stop, width in _parts(n, groups):
        halves = flat[start:stop].view(-1, 2, width // 2)
        out[start // 2 : stop // 2].view(-1, width // 2).copy_(halves[:, 0] | halves[:, 1] << 4)
    return out


def split_nibbles(joined: Tensor, n: int, groups: int) -> Tensor:
    """The inverse of :func:`join_nibbles`."""
    out = torch.empty(joined.numel() * 2, dtype=torch.uint8, device="cpu")
    for start, stop, width in _parts(n, groups):
        both = joined[start // 2 : stop // 2].view(-1, width // 2)
        halves = out[start:stop].view(-1, 2, width // 2)
        halves[:, 0], halves[:, 1] = both & 15, both >> 4
    return out


def _parts(n: int, groups: int) -> list[tuple[int, int, int]]:
    """(first value, last value, outputs a tile): the whole tiles, then the narrower one."""
    whole, last = n // TILE * TILE, padded(n) - n // TILE * TILE
    parts = [(0, whole * groups, TILE), (whole * groups, padded(n) * groups, last)]
    return [part for part in parts if part[1] > part[0]]
