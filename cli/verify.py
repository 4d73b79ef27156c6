"""``quantdispatch verify``: the worst layer first."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from .output import Output, Segment
from .run import known_backend, require_engine, torch_device

if TYPE_CHECKING:
    from ..engines.verify import Row


def verify_command(
    path: str, *, tolerance: float, backend: str | None, allow: list[str], device: str, as_json: bool
) -> int:
    """0, or 1 when a layer's error exceeds ``tolerance`` or its weight is not compressed-tensors' own, bit for bit."""
    where = torch_device(device)
    if backend is not None:
        known_backend(backend)
    require_engine()
    from ..engines.verify import verify

    rows = verify(path, device=where, backend=backend, allow=allow)
    failed = [row for row in rows if not passes(row, tolerance)]
    output = Output()
    if as_json:
        layers = [_entry(row, tolerance) for row in rows]
        output.json({"version": 1, "tolerance": tolerance, "failed": len(failed), "layers": layers})
        return 1 if failed else 0
    if rows:
        output.table([_heading(), *(_cells(row, tolerance) for row in rows)])
        output.line()
    unknown = sum(row.weights_equal is None for row in rows)
    text = f"{len(rows) - len(failed)} of {len(rows)} layers within {tolerance:g}"
    text += f" · {unknown} not compared with compressed-tensors" if unknown else ""
    output.line((text, "bold red" if failed else "green"))
    return 1 if failed else 0


def passes(row: Row, tolerance: float) -> bool:
    return row.error <= tolerance and row.weights_equal is not False


def _heading() -> list[Segment]:
    return [(text, "bold") for text in ("error", "largest", "weight", "scheme", "kernel", "layer")]


def _cells(row: Row, tolerance: float) -> list[Segment]:
    weight = {True: "equal", False: "DIFFERS", None: "unknown"}[row.weights_equal]
    name = row.name if row.exact else f"{row.name} (deviates from the scheme)"
    return [
        (f"{row.error:.2e}", "" if row.error <= tolerance else "bold red"),
        f"{row.largest:.2e}",
        (weight, "bold red" if row.weights_equal is False else ""),
        row.scheme,
        row.kernel,
        f"{name}: {row.note}" if row.note else name,
    ]


def _entry(row: Row, tolerance: float) -> dict[str, Any]:
    """JSON has no infinity: an error that is not finite is null."""
    values = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in dataclasses.asdict(row).items()
    }
    return {**values, "passes": passes(row, tolerance)}
