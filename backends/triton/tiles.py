"""Tiles of products whose inputs are quantized, and of routed experts: the defaults, and what there is to measure.

No GPU has measured these yet; every candidate was compiled for sm80, sm90, sm100 and gfx942 (``python -m
benchmarks.triton_candidates``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from .activations_codes import FLOAT
from .config import SHARED
from .launch import Device
from .tuning import Family

if TYPE_CHECKING:
    from .activations_linear import Product

#: shared memory a program may have, in KB, where it is less than Hopper's 227
_SHARED = {"sm80": 160, "sm89": 99, "sm120": 99, "gfx942": 64}
#: families whose loads run ahead of a step by a stage less, and whose operands lie in registers
_MMA = frozenset({"sm80", "sm89", "sm120", "gfx942"})
#: columns that the matrix instructions for bytes take
LEAST_COLUMNS = 32
_MOST_SPLITS = 16


@dataclass(frozen=True)
class Tile:
    """Rows, outputs and columns of a program, and parts that K is split into."""

    bm: int
    bn: int
    bk: int
    split: int = 1
    warps: int = 4
    stages: int = 3


@cache
def tile_for(of: Product, m: int, n: int, k: int, where: str, programs: int) -> Tile:
    """A tile that is sane without measuring. ``m``: rows, rounded up to a power of two. ``programs``: that run at
    once."""
    bk = of.run if of.packed else columns_of_step(of)
    most = most_rows(of, where)
    bm = max(16, min(most, m))
    bn = 64 if bm <= 32 or _grouped(of) else 128
    warps = 8 if bm == 128 else 4
    # a byte of each, or two of inputs that are halves
    step = bn * bk * (2 if of.inputs == "half" else 1) + bm * bk * (2 if of.inputs == "half" else 1)
    budget = _SHARED.get(where, 200) * 1024
    stages = max(1, min(2 if where == "gfx942" else 4, budget // (2 * step)))
    one = Tile(bm, bn, bk, 1, warps, stages)
    return replace(one, split=_split(one, of, m, n, k, programs))


def _grouped(of: Product) -> bool:
    """Are there sums of a group beside those of all? Twice the registers."""
    return bool(of.group or of.x_group) and of.inputs != "half"


def most_rows(of: Product, where: str) -> int:
    if where == "sm80" and of.packed and of.inputs == "fp8":
        return 16  # both sides are decoded there, in registers
    return 64 if _grouped(of) else 128


def _split(tile: Tile, of: Product, m: int, n: int, k: int, programs: int) -> int:
    blocks = -(-m // tile.bm) * -(-n // tile.bn)
    steps = -(-k // step_of(of, tile))
    split = 1
    while split < _MOST_SPLITS and blocks * split * 2 <= 2 * programs and steps >= 4 * split:
        split *= 2
    return split


def step_of(of: Product, tile: Tile) -> int:
    """Columns of K that a step of the loop takes."""
    return 2 * tile.bk if of.packed else tile.bk


def columns_of_step(of: Product) -> int:
    """Columns that a step takes of codes a byte each: a power of two that divides the groups."""
    bk = of.run
    for group in (of.group if of.scale == FLOAT.value or of.inputs != "half" else 0, of.x_group):
        while group and group % bk:
            bk //= 2
    return bk


def rounded_rows(m: int) -> int:
    return 1 << (max(m, 16) - 1).bit_length()


# -- candidates


def shared_bytes(of: Product, tile: Tile, where: str) -> int:
    """Of shared memory, at most: the stages of what is loaded, and weights decoded for instructions that read them from
    there."""
    of_x = 2 if of.inputs == "half" else 1
    loaded = tile.bn * tile.bk + (2 if of.packed else 1) * tile.bm * tile.bk * of_x
    stages = max(1, tile.stages - 1) if where in _MMA else tile.stages
    decoded = tile.bn * tile.bk * (1 if of.inputs != "half" and not of.packed else 2)
    # where nothing runs ahead both operands may be brought into another layout
    turned = tile.bm * tile.bk * (2 if where == "sm80" else of_x) if tile.stages == 1 or where not in _MMA else 0
    return stages * loaded + decoded + turned


def fits(of: Product, tile: Tile, where: str) -> bool:
    return where == "interpreter" or shared_bytes(of, tile, where) <= SHARED[where]


def _columns(of: Product) -> list[int]:
    """Of a step: for packed codes what they are packed by, else powers of two that divide the groups."""
    if of.packed:
        return [of.run]
    usual = columns_of_step(of)
    found = [usual]
    if usual // 2 >= max(LEAST_COLUMNS, of.group if of.inputs == "half" else 0):
        found.append(usual // 2)
    if usual == 128 and not of.group and not of.x_group:
        found.append(256)
    return found


def _shapes(of: Product, m: int, where: str) -> Iterator[tuple[int, int, int]]:
    """Rows, outputs, warps."""
    most = most_rows(of, where)
    rows = max(16, min(most, m))
    if rows <= 32:
        yield from ((rows, 32, 2), (rows, 64, 4), (rows, 64, 8), (rows, 128, 4), (rows, 128, 8))
        if rows == 32:
            yield (16, 64, 4)
        return
    yield from ((rows, 64, 4), (rows // 2, 64, 4), (rows // 2, 128, 8))
    if not _grouped(of):
        yield from ((rows, 128, 8), (rows // 2, 128, 4))


def _deepest(of: Product, tile: Tile, where: str) -> Iterator[Tile]:
    """With as many stages as fit, up to 4 (2 on gfx942, whose loads wait in registers)."""
    most = {"gfx942": 2, "interpreter": 1}.get(where, 4)
    fitting = [replace(tile, stages=stages) for stages in range(most, 0, -1)]
    yield from [one for one in fitting if fits(of, one, where)][:1]


def default(device: Device, of: Product, m: int, n: int, k: int, half: str) -> Tile:
    return tile_for(of, m, n, k, device.family, device.processors)


def candidates(device: Device, of: Product, m: int, n: int, k: int, half: str) -> list[Tile]:
    """What is measured for so many rows, rounded up to a power of two; the default first. All are valid: they fit into
    shared memory, a step's columns divide the groups, and they are what the matrix instructions for bytes take."""
    where, programs = device.family, device.processors
    first = tile_for(of, m, n, k, where, programs)
    columns = _columns(of)
    # each of what a tile is made of changed by itself: a minute for a task, not an hour
    others = [replace(first, bk=bk) for bk in columns if bk != first.bk]
    others += [replace(first, stages=stages) for stages in (2, 3) if where not in ("gfx942", "interpreter")]
    found = [one for one in others if fits(of, one, where)]
    for bm, bn, warps in _shapes(of, m, where):
        for tile in _deepest(of, Tile(bm, bn, first.bk, 1, warps), where):
            found.append(replace(tile, split=_split(tile, of, m, n, k, programs)))
    steps = -(-k // step_of(of, first))
    found += [replace(first, split=s) for s in (1, 2 * first.split) if s <= min(steps, _MOST_SPLITS)]
    return list(dict.fromkeys([first, *found]))


def task(of: Product, m: int, n: int, k: int, half: str) -> str:
    return f"m{m} n{n} k{k} {form(of)} {half}"


def form(of: Product) -> str:
    """All that a product says, short."""
    flags = "".join(name for name, on in (("z", of.zero), ("w", of.wide)) if on)
    return (
        f"{of.weight}x{of.inputs} g{of.group} r{of.rows} x{of.x_group} s{of.scale} run{of.run}{flags and ' ' + flags}"
    )


#: of one layer's product, by what is multiplied, rows (rounded up), N, K and the dtype of x
TILES = Family("quantized", Tile, task, default, candidates)
