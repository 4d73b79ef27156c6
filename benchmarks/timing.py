"""Timing that holds on a busy machine: thread CPU time, candidates taken in turn, medians."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


#: rounds that are made however long they take: fewer have no median
FEWEST = 3


def interleaved(
    candidates: Mapping[K, Callable[[], object]], rounds: int, limit: float | None = None
) -> dict[K, list[float]]:
    """Seconds of one call of each candidate, round by round, after one warm-up each. Torch must run on one thread.

    ``limit``: seconds after which there are no more rounds.
    """
    for call in candidates.values():
        call()
    seconds: dict[K, list[float]] = {name: [] for name in candidates}
    begin = time.monotonic()
    for number in range(rounds):
        if limit is not None and number >= FEWEST and time.monotonic() - begin > limit:
            break
        for name, call in candidates.items():
            start = time.thread_time()
            call()
            seconds[name].append(time.thread_time() - start)
    return seconds


def ratio(over: list[float], under: list[float]) -> float:
    """Median of the rounds' ratios: what slows the machine for a while slows both sides of a round alike."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))
