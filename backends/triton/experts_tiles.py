"""Tiles of routed experts: tokens of a block, which all projections of a layer share, and the rest of each tile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from . import tiles
from .launch import Device
from .tiles import Tile, fits, tile_for
from .tuning import Family

if TYPE_CHECKING:
    from .activations_linear import Product

#: tokens of a block; codes of fp4 take more registers to decode
MOST_TOKENS, MOST_OF_FP4 = 32, 16


@dataclass(frozen=True)
class Rows:
    """Tokens of a block."""

    rows: int


@dataclass(frozen=True)
class Work:
    """What a layer's blocks depend on. ``sizes``: of each projection what is multiplied, N and K. ``each``: pairs of a
    token and an expert for an expert, and ``pairs``: for all, both rounded up to powers of two."""

    sizes: tuple[tuple[Product, int, int], ...]
    experts: int
    each: int
    pairs: int


def expert_tile(of: Product, rows: int, n: int, k: int, where: str) -> Tile:
    """Smaller than a layer's of its own: every row has an address of its own, which takes registers."""
    return replace(tile_for(of, min(rows, most_rows(of)), n, k, where, 1), bn=64, split=1, warps=4)


def most_rows(of: Product) -> int:
    return MOST_OF_FP4 if of.weight == "fp4" else MOST_TOKENS


# -- the rest of a projection's tile, the tokens of a block being given


def _task(of: Product, rows: int, n: int, k: int, experts: int, pairs: int, half: str) -> str:
    return f"{tiles.task(of, pairs, n, k, half)} e{experts} block{rows}"


def _default(device: Device, of: Product, rows: int, n: int, k: int, experts: int, pairs: int, half: str) -> Tile:
    return replace(expert_tile(of, rows, n, k, device.family), bm=rows)


def _candidates(
    device: Device, of: Product, rows: int, n: int, k: int, experts: int, pairs: int, half: str
) -> list[Tile]:
    first = _default(device, of, rows, n, k, experts, pairs, half)
    found = [first]
    others = [replace(first, bn=bn, warps=warps) for bn, warps in ((32, 2), (32, 4), (64, 8), (128, 4), (128, 8))]
    others += [replace(first, bk=bk) for bk in _columns(of, first)]
    most = {"gfx942": 2, "interpreter": 1}.get(device.family, 4)
    others += [replace(first, stages=stages) for stages in range(2, most + 1)]
    for one in others:
        while one.stages > 1 and not fits(of, one, device.family):
            one = replace(one, stages=one.stages - 1)
        if fits(of, one, device.family):
            found.append(one)
    return list(dict.fromkeys(found))


def _columns(of: Product, first: Tile) -> Iterator[int]:
    half = first.bk // 2
    if not of.packed and half >= max(tiles.LEAST_COLUMNS, of.group if of.inputs == "half" else 0):
        yield half


#: by what is multiplied, tokens of a block, N, K, experts, pairs (rounded up), the dtype of x
EXPERT_TILES = Family("experts", Tile, _task, _default, _candidates)


# -- tokens of a block


def _rows_task(work: Work, half: str) -> str:
    sizes = "; ".join(f"n{n} k{k} {tiles.form(of)}" for of, n, k in work.sizes)
    return f"m{work.pairs} e{work.experts} {half} {sizes}"


def _rows_default(device: Device, work: Work, half: str) -> Rows:
    return Rows(min(expert_tile(of, work.each, n, k, device.family).bm for of, n, k in work.sizes))


def _rows_candidates(device: Device, work: Work, half: str) -> list[Rows]:
    """Not more than all projections have registers for."""
    most = min(min(most_rows(of), tiles.most_rows(of, device.family)) for of, _, _ in work.sizes)
    found = [Rows(rows) for rows in (16, 32) if rows <= min(most, 2 * work.each)]
    return list(dict.fromkeys([_rows_default(device, work, half), *found]))


#: by :class:`Work` and the dtype of x
ROWS = Family("experts rows", Rows, _rows_task, _rows_default, _rows_candidates)
