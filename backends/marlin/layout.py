"""Marlin's memory layout, in plain torch: weights, scales, zero points and biases there and back, on any device.

Marlin (Frantar et al., https://github.com/IST-DASLab/marlin; its GPTQ/AWQ/fp8/fp4 form in vLLM and SGLang) keeps a
weight in the order in which the threads of a tensor-core instruction hold it. A tile is 16 x 16 of W.T [K, N]; each run
of 1024 codes is four neighbouring tiles, 16 rows of K by 64 columns of N. Every function here has its inverse: nothing
of what a checkpoint stores is lost.
"""

from __future__ import annotations

from functools import cache
from math import lcm

import torch
import torch.nn.functional as F
from torch import Tensor

TILE = 16
#: codes that are permuted together: four tiles
RUN = 4 * TILE * TILE
#: how codes of one word are ordered, so that two shifts and masks give pairs of halves
_INTERLEAVE = {4: (0, 2, 4, 6, 1, 3, 5, 7), 8: (0, 2, 1, 3)}
#: (N, K) are multiples of one of these: the tiles that a thread block takes
THREAD_TILES = ((64, 128), (128, 64))


@cache
def _run_order(bits: int) -> tuple[int, ...]:
    """Of each place in a run the index that it is filled from, before the word's own order: index 256 * tile + 16 * row
    + column. Lane i of a warp holds column i // 4 and i // 4 + 8, and of each the rows 2 (i % 4) + {0, 1, 8, 9}."""
    places = [
        256 * tile + 16 * (2 * (lane % 4) + row) + lane // 4 + 8 * half
        for lane in range(32)
        for tile in range(4)
        for half in range(2)
        for row in (0, 1, 8, 9)
    ]
    within = _INTERLEAVE[bits]
    step = len(within)
    return tuple(places[start + i] for start in range(0, RUN, step) for i in within)


@cache
def _scale_order(grouped: bool) -> tuple[int, ...]:
    """Of each place among 64 columns (``grouped``) or 32 (a scale for a whole column) the column it is filled from."""
    if grouped:
        return tuple(i + 8 * j for i in range(8) for j in range(8))
    return tuple(2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25))


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _reorder(values: Tensor, order: tuple[int, ...]) -> Tensor:
    """Permute each run of ``len(order)`` values of the last axis."""
    index = torch.tensor(order, device=values.device)
    return values.reshape(-1, len(order)).index_select(1, index).view(values.shape)


# --- shapes


def padded_shape(n: int, k: int, group: int | None = None) -> tuple[int, int]:
    """The smallest (N, K) that the kernels take: one of :data:`THREAD_TILES`, K whole groups (``None``: one in all)."""
    choices = []
    for unit_n, unit_k in THREAD_TILES:
        unit_k = unit_k if group is None else lcm(unit_k, group)
        choices.append((-(-n // unit_n) * unit_n, -(-k // unit_k) * unit_k))
    return min(choices, key=lambda shape: (shape[0] * shape[1], shape[0] + shape[1]))


def pad(values: Tensor, rows: int, columns: int, value: float = 0) -> Tensor:
    """[R, C] to [rows, columns], filled with ``value``."""
    more = (0, columns - values.shape[1], 0, rows - values.shape[0])
    return F.pad(values, more, value=value) if any(more) else values


# --- weights


def pack_weight(codes: Tensor, bits: int) -> Tensor:
    """Unsigned codes uint8 [N, K] of 4 or 8 bits to int32 [K / 16, N * 16 * bits / 32].

    Raises ``ValueError`` unless N is a multiple of 64 and K of 16.
    """
    n, k = codes.shape
    if n % 64 or k % TILE:
        raise ValueError(f"Marlin takes N in 64s and K in 16s, not {n} x {k}")
    tiles = codes.t().reshape(k // TILE, TILE, n // TILE, TILE).transpose(1, 2).reshape(k // TILE, n * TILE)
    return pack_words(_reorder(tiles, _run_order(bits)), bits)


def unpack_weight(packed: Tensor, bits: int) -> Tensor:
    """The inverse: int32 [K / 16, N * 16 * bits / 32] to uint8 [N, K]."""
    rows = packed.shape[0]
    tiles = _reorder(unpack_words(packed, bits), _inverse(_run_order(bits)))
    n = tiles.shape[1] // TILE
    return tiles.view(rows, n // TILE, TILE, TILE).transpose(1, 2).reshape(rows * TILE, n).t().contiguous()


def pack_words(values: Tensor, bits: int) -> Tensor:
    """uint8 [R, C] to int32 [R, C * bits / 32], low bits first."""
    if bits == 8:
        return values.contiguous().view(torch.int32)
    pairs = values.view(values.shape[0], -1, 2)
    return (pairs[..., 0] | pairs[..., 1] << 4).view(torch.int32)


def unpack_words(words: Tensor, bits: int) -> Tensor:
    """The inverse: int32 [R, W] to uint8 [R, W * 32 / bits]."""
    octets = words.contiguous().view(torch.uint8)
    if bits == 8:
        return octets
    return torch.stack((octets & 15, octets >> 4), dim=-1).flatten(1)


# --- scales, zero points, biases


def permute_scales(scales: Tensor, grouped: bool) -> Tensor:
    """[G, N] to the same shape. ``grouped``: there are several scales a column, else one."""
    return _reorder(scales.contiguous(), _scale_order(grouped))


def restore_scales(scales: Tensor, grouped: bool) -> Tensor:
    """The inverse of :func:`permute_scales`."""
    return _reorder(scales, _inverse(_scale_order(grouped)))


def permute_bias(bias: Tensor) -> Tensor:
    """[N] to [N]: in the order of the accumulators, as scales of whole columns are."""
    return _reorder(bias.contiguous(), _scale_order(False))


def pack_zero_points(zero_points: Tensor, bits: int) -> Tensor:
    """Unsigned uint8 [G, N] to int32 [G, N * bits / 32]: always in the order of grouped scales, whatever G is."""
    ordered = _reorder(zero_points.contiguous(), _scale_order(True))
    return pack_words(_reorder(ordered, _INTERLEAVE[bits]), bits)


def unpack_zero_points(packed: Tensor, bits: int) -> Tensor:
    """The inverse: int32 [G, N * bits / 32] to uint8 [G, N]."""
    ordered = _reorder(unpack_words(packed, bits), _inverse(_INTERLEAVE[bits]))
    return _reorder(ordered, _inverse(_scale_order(True)))
