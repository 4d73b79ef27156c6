"""Timing that holds on a busy machine: thread CPU time, candidates taken in turn, medians."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def interleaved(candidates: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of one call of each candidate, after one warm-up each. Torch must run on one thread."""
    for call in candidates.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, call in candidates.items():
            start = time.thread_time()
            call()
            seconds[name].append(time.thread_time() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}
