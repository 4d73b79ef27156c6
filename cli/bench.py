"""``quantdispatch bench``: the admissible kernels on a checkpoint's own shapes, and the file that plans go by."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..registry.choices import FILE, write_choices
from .output import Output, Segment
from .run import require_engine, torch_device

if TYPE_CHECKING:
    from ..engines.bench import Timing


def bench_command(
    path: str, *, device: str, rows: list[int], seconds: float, allow: list[str], out: str | None, as_json: bool
) -> int:
    """0 when every task was measured and the file is written. Raises what ``plan()`` raises."""
    name = torch_device(device)
    require_engine()
    import torch

    from ..engines.bench import ROWS, bench, choices_of
    from ..engines.binding import device_name
    from ..engines.loading import local_folder, require_tensors
    from ..registry.plan import plan as make_plan

    folder = local_folder(path)
    where = torch.device(name)
    plan = make_plan(folder, device=device_name(where), allow=allow, choices=False)
    require_tensors(plan, folder)
    output = Output()
    timings: list[Timing] = []
    for timing in bench(plan, where, rows=rows or ROWS, seconds=seconds):
        timings.append(timing)
        if not as_json:
            _show(output, timing)
    target = out or os.path.join(folder, FILE)
    choices = choices_of(timings, plan, target)
    write_choices(choices)
    if as_json:
        output.json({**choices.to_json(), "path": target, "layers": [_entry(t) for t in timings]})
        return 0
    output.line(f"{len(timings)} tasks on {plan.environment.describe()}; plans of {Path(folder).name} go by {target}")
    return 0


def _entry(timing: Timing) -> dict[str, Any]:
    times = {str(rows): dict(own) for rows, own in timing.times.items()}
    return {"layer": timing.layer, "layers": timing.layers, "microseconds": times, "refused": dict(timing.refused)}


def _show(output: Output, timing: Timing) -> None:
    spec = timing.spec
    more = f" and {timing.layers - 1} more" if timing.layers > 1 else ""
    output.line((timing.layer, "bold cyan"), f"{more} · {spec.scheme} · N {spec.n}, K {spec.k} · microseconds")
    names = list(next(iter(timing.times.values())))
    table: list[list[Segment]] = [[("rows", "bold"), *((name, "bold") for name in names)]]
    for rows, own in timing.times.items():
        best = min(own.values())
        table.append([str(rows), *((f"{own[name]:.1f}", "green" if own[name] == best else "") for name in names)])
    output.table(table)
    for name, reason in timing.refused.items():
        output.line((f"{name}: {reason}", "dim"))
    output.line()
