"""Times on a device: a CUDA graph over several copies of the weights, timed by events, the median of many replays."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

#: copies of what is read have so many times the size of the second-level cache together
TIMES_L2 = 3
WARM_UP, REPLAYS = 3, 15


def copies_past_l2(size: int, device: str) -> int:
    """How many copies of ``size`` bytes a round has to go through so that none is still in the cache."""
    if not device.startswith("cuda"):
        return 1
    cache = int(torch.cuda.get_device_properties(device).L2_cache_size)
    return max(1, -(-TIMES_L2 * cache // max(size, 1)))


def seconds(calls: Sequence[Callable[[], object]], device: str) -> float:
    """Median seconds of a call, the calls being one round captured in one graph. On the CPU: wall time of one round."""
    for call in calls:
        call()
    if not device.startswith("cuda"):
        start = time.perf_counter()
        for call in calls:
            call()
        return (time.perf_counter() - start) / len(calls)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    for _ in range(WARM_UP):
        graph.replay()
    times = []
    for _ in range(REPLAYS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / len(calls))
    return statistics.median(times)


def ceilings(device: str) -> tuple[float, float]:
    """Bytes a second of a large copy, reads and writes counted, and bf16 operations a second of a large product."""
    if not device.startswith("cuda"):
        return 1e10, 1e11
    size = 1 << 30
    source = torch.empty(size, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    copied = 2 * size / seconds([lambda: target.copy_(source)], device)
    a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    return copied, 2 * 8192**3 / seconds([lambda: a @ b], device)
