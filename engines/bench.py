"""How long each admissible kernel takes for a checkpoint's own layers, on the device that is here.

One layer of each kind of task is read, packed for every kernel, and called in turns: a kernel that is disturbed is
disturbed like the others. Medians. On a GPU between events, behind a write that is larger than the cache, which also
hides what launching costs; that path has not been run on a GPU yet.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..registry.choices import Choices, Measured, identity, task_key
from ..registry.errors import NoKernelFound
from ..registry.facts import KernelSpec
from ..registry.kernels import Kernel, run_probe
from ..registry.lazy import load_target
from ..registry.plan import Plan, Resolution
from ..registry.registry import get_registry
from ..registry.scheme import KernelImpl
from .binding import implementation
from .packed import _moved
from .tensors import read_tensor

ROWS = (1, 16, 256, 2048)
#: more than the last cache of any GPU or CPU here
_FLUSH_BYTES = 256 << 20


@dataclass(frozen=True)
class Timing:
    """One task's figures. ``layer``: the one that was measured; ``layers``: how many have the task. ``refused``: kernel
    to what kept it from running."""

    layer: str
    layers: int
    spec: KernelSpec
    times: Mapping[int, Mapping[str, float]]
    refused: Mapping[str, str]


def bench(plan: Plan, device: torch.device, *, rows: Sequence[int] = ROWS, seconds: float = 0.2) -> Iterator[Timing]:
    """Measure each task of a plan, whose checkpoint is at hand. ``rows``: tokens a call. ``seconds``: for each kernel
    and number of rows, about. Raises ``NoKernelFound`` for a layer that no kernel computes here."""
    tasks: dict[str, list[Resolution]] = {}
    for layer in plan.layers.values():
        if layer.spec is not None and layer.spec.op == "linear" and layer.selection is not None and layer.tensors:
            tasks.setdefault(task_key(layer.spec), []).append(layer)
    for layers in tasks.values():
        yield _measure(layers[0], len(layers), plan, device, rows, seconds)


def choices_of(timings: Iterable[Timing], plan: Plan, path: str) -> Choices:
    """The file's contents."""
    tasks = {task_key(t.spec): Measured(task_key(t.spec), t.times) for t in timings}
    return Choices(path, identity(plan.environment), tasks)


def _measure(
    layer: Resolution, count: int, plan: Plan, device: torch.device, rows: Sequence[int], seconds: float
) -> Timing:
    assert layer.spec is not None
    refused: dict[str, str] = {}
    calls = dict(_calls(layer, plan, device, refused))
    if not calls:
        raise NoKernelFound(
            "no kernel ran",
            layer=layer.name,
            field="kernel",
            observed="; ".join(f"{k}: {v}" for k, v in refused.items()) or "no kernel is admissible",
            required=f"one that computes {layer.spec.scheme} here",
            code="QD751",
        )
    dtype, k = getattr(torch, layer.spec.dtype), layer.spec.k or 1
    times: dict[int, dict[str, float]] = {}
    for number in rows:
        x = torch.randn(number, k, generator=torch.Generator().manual_seed(number)).to(device, dtype)
        with torch.no_grad():
            times[number] = _timed({name: partial(call, x) for name, call in calls.items()}, device, seconds)
    return Timing(layer.name, count, layer.spec, times, refused)


def _calls(
    layer: Resolution, plan: Plan, device: torch.device, refused: dict[str, str]
) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    assert layer.spec is not None and layer.scheme_object is not None
    scheme = layer.scheme_object
    stored = {name: read_tensor(entry) for name, entry in layer.tensors.items()}
    operands: Any = load_target(scheme.numerics)(scheme.layer).operands(stored, layer.shape, layer.name)
    operands = _moved(operands, device)
    x = torch.zeros(1, layer.spec.k or 1, device=device, dtype=getattr(torch, layer.spec.dtype))
    for kernel in admissible(layer.spec, plan, refused):
        try:
            impl = implementation(kernel, layer.spec)
            with torch.no_grad():
                state = impl.pack(operands)
                impl.apply(x, state)
        except Exception as error:  # whatever a kernel fails with, the others are measured all the same
            refused[kernel.name] = f"{type(error).__name__}: {error}"
            continue
        yield kernel.name, partial(_apply, impl, state)


def _apply(impl: KernelImpl, state: Mapping[str, Tensor], x: Tensor) -> Tensor:
    result: Tensor = impl.apply(x, state)
    return result


def admissible(spec: KernelSpec, plan: Plan, refused: dict[str, str]) -> list[Kernel]:
    """The kernels that compute all of the scheme and whose probes succeed. Slow ones only where there is no other, and
    those that deviate only where the user allows that: a file of choices must not turn a plan into another one."""
    found = []
    for candidate in get_registry().select(spec, plan.environment).trace:
        kernel = candidate.kernel
        if candidate.status != "yes" or (kernel.deviations and not spec.allow):
            continue
        reason = run_probe(kernel.probe) if kernel.probe is not None else None
        if reason is not None:
            refused[kernel.name] = reason
        else:
            found.append(kernel)
    return [kernel for kernel in found if not kernel.slow] or found


def _timed(calls: Mapping[str, Callable[[], Tensor]], device: torch.device, seconds: float) -> dict[str, float]:
    """Median microseconds of each, called in turns until the time is up."""
    one = _gpu_seconds if device.type == "cuda" else _cpu_seconds
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device=device) if device.type == "cuda" else None
    for call in calls.values():
        call()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end or len(next(iter(taken.values()))) < 5:
        for name, call in calls.items():
            taken[name].append(one(call, flush))
    return {name: statistics.median(own) * 1e6 for name, own in taken.items()}


def _cpu_seconds(call: Callable[[], Tensor], flush: Tensor | None) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _gpu_seconds(call: Callable[[], Tensor], flush: Tensor | None) -> float:
    if flush is not None:
        flush.zero_()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
    events[0].record()
    call()
    events[1].record()
    torch.cuda.synchronize()
    return float(events[0].elapsed_time(events[1])) / 1e3
