"""How a product is cut into programs: what is taken where nothing was measured, and the form of what was.

No GPU has measured these defaults yet. They follow from what the compiler reports (docs/triton.md): registers, shared
memory and instructions a code; and from a device wanting several programs a processor while weights stream.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Config:
    """``block_m`` tokens by ``block_n`` outputs a program, K cut into ``splits``; ``dense``: make the weight in 16 bits
    first, and let torch multiply."""

    block_m: int
    block_n: int
    splits: int = 1
    warps: int = 4
    stages: int = 3
    dense: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


#: from so many tokens on, making the weight once costs less than making it again in every block of tokens
DENSE_FROM = 1024
#: tiles of K that a split has at least: the loop's beginning and the sum have to be worth it
_LEAST_TILES = 4
_MOST_SPLITS = 16
#: families with processors of 100 KB of shared memory among them (sm86, sm89, sm120)
_SMALL_MEMORY = frozenset({"sm80", "sm89", "sm120"})
#: bytes of shared memory that a program of each family can have
SHARED = {"sm80": 101376, "sm89": 101376, "sm90": 232448, "sm100": 232448, "sm120": 101376, "gfx942": 65536}


def bucket(m: int) -> int:
    """Numbers of tokens that share a config: up to the next power of two."""
    return 1 << max(m - 1, 0).bit_length()


def default(m: int, n: int, tiles: int, family: str, processors: int) -> Config:
    """For M tokens, N outputs and so many tiles of K on a device of ``family``."""
    if m >= DENSE_FROM:
        return Config(64, 128, 1, 8, 2, dense=True)
    if family == "interpreter":
        base, resident = Config(16, 32, warps=1, stages=1), 1
    elif family == "gfx942":
        base, resident = Config(16 if m <= 16 else 32, 64, warps=4, stages=2), 2
    elif m <= 16:
        # two warps: the 16 x 8 instruction, whose short side is tokens, and the fewest instructions a code
        base, resident = Config(8 if m <= 8 else 16, 32, warps=2, stages=3), 6
    elif family in _SMALL_MEMORY or m <= 32:
        base, resident = Config(32, 64, warps=4, stages=2), 2
    else:
        base, resident = Config(64, 128, warps=8, stages=2), 1
    return replace(base, splits=_splits(base, m, n, tiles, resident * processors))


def _splits(config: Config, m: int, n: int, tiles: int, wanted: int) -> int:
    """As many as fill the device once, where blocks of outputs and tokens alone do not."""
    blocks = -(-n // config.block_n) * -(-m // config.block_m)
    return max(1, min(wanted // blocks, tiles // _LEAST_TILES, _MOST_SPLITS))


def candidates(m: int, n: int, tiles: int, family: str, processors: int) -> list[Config]:
    """What autotuning measures, the default first."""
    first = default(m, n, tiles, family, processors)
    shapes: list[tuple[int, int, int, int]] = []
    if family == "gfx942":
        # 64 KB of shared memory; its instructions have 16 tokens or more
        short = 16 if m <= 16 else 32
        shapes = [(16, 32, 2, 2), (16, 64, 4, 1), (16, 64, 4, 2), (short, 64, 4, 1), (short, 128, 8, 1), (32, 64, 4, 2)]
    elif m <= 16:
        short = 8 if m <= 8 else 16
        shapes = [(short, 16, 1, 5), (short, 32, 2, 3), (short, 32, 2, 4), (short, 64, 4, 3), (short, 64, 4, 4)]
    elif m <= 64:
        shapes = [(16, 64, 4, 3), (32, 64, 4, 2), (32, 64, 4, 3), (64, 64, 4, 2), (64, 128, 8, 2)]
    else:
        shapes = [(64, 64, 4, 2), (64, 128, 8, 2), (32, 128, 8, 2)]
    found = [first]
    for block_m, block_n, warps, stages in shapes:
        base = Config(block_m, block_n, 1, warps, stages)
        for resident in (0, 2, 4, 8) if m <= 64 else (0, 1):
            found.append(replace(base, splits=_splits(base, m, n, tiles, resident * processors)))
    if m >= 128:
        found.append(Config(64, 128, 1, 8, 2, dense=True))
    return list(dict.fromkeys(found))
