"""Blocks of products with scales on both sides: the default, and what there is to measure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .config import SHARED, bucket
from .launch import Device
from .tuning import Family


@dataclass(frozen=True)
class Blocks:
    """Tokens, outputs and columns of a program."""

    m: int
    n: int
    k: int
    warps: int = 4
    stages: int = 2


def blocks(m: int, family: str) -> Blocks:
    """Without measuring. sm100's instruction has 128 tokens or none."""
    if family == "sm100":
        return Blocks(128, 128, 128)
    # with 128 tokens sm120 spills
    return Blocks(
        64 if m > 32 and family != "interpreter" else 32, 128 if m > 32 and family != "interpreter" else 64, 128
    )


def shared_bytes(one: Blocks, x_bits: int, w_bits: int, group: int) -> int:
    """Of shared memory, at most: all stages of codes and scales, fp4 codes beside e4m3 ones taking a byte each."""
    bits = (x_bits, w_bits) if x_bits == w_bits else (8, 8)
    codes = (one.m * bits[0] + one.n * bits[1]) * one.k // 8
    return one.stages * (codes + (one.m + one.n) * one.k // group)


def _task(m: int, n: int, k: int, x_bits: int, w_bits: int, group: int, half: str) -> str:
    return f"m{m} n{n} k{k} fp{w_bits}xfp{x_bits} g{group} {half}"


def _default(device: Device, m: int, n: int, k: int, x_bits: int, w_bits: int, group: int, half: str) -> Blocks:
    return blocks(m, device.family)


def _candidates(
    device: Device, m: int, n: int, k: int, x_bits: int, w_bits: int, group: int, half: str
) -> list[Blocks]:
    first = blocks(m, device.family)
    if device.family == "sm100":
        found = [replace(first, n=n, warps=warps) for n, warps in ((64, 4), (128, 8), (256, 4), (256, 8))]
        found += [
            replace(first, k=256),
            replace(first, stages=3),
            replace(first, n=64, k=256),
            replace(first, stages=4),
        ]
    elif device.family == "interpreter":
        found = [Blocks(16, 64, 128), Blocks(32, 32, 64), Blocks(64, 64, 128)]
    else:
        found = [Blocks(m, n, 128, warps, 2) for m, n, warps in ((32, 64, 4), (32, 128, 4), (64, 64, 4), (64, 128, 8))]
        found += [replace(first, stages=3), replace(first, k=256), replace(first, stages=1)]
    limit = SHARED.get(device.family, SHARED["sm100"])
    fitting = [one for one in found if shared_bytes(one, x_bits, w_bits, group) <= limit]
    return list(dict.fromkeys([first, *fitting]))


#: by rows (rounded up to a power of two), N, K, bits of both sides, the group, the dtype of x
BLOCKS = Family("block_scaled", Blocks, _task, _default, _candidates)


def chosen(index: int, m: int, n: int, k: int, x_bits: int, w_bits: int, group: int, half: str) -> Blocks:
    return BLOCKS.choice(index, bucket(m), n, k, x_bits, w_bits, group, half)
