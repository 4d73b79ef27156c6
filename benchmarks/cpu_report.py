"""The rows of a CPU benchmark as tables: ratios by number of rows with the floors under them, and GB/s at few rows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

NOTE = "floors are for AVX-512 with bf16 and vnni, without AMX; this processor: {isa}"


@dataclass(frozen=True)
class Floors:
    """What must be reached, by op and number of rows (``None``: not asked for): time of bf16 over ours. ``over_peer``:
    a peer's time over ours, for every op that it has. ``of_roof``: share of the read roof at one row."""

    rows: Sequence[int]
    ratios: Mapping[str, Sequence[float | None]]
    over_peer: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    of_roof: Mapping[str, float] = field(default_factory=dict)


def report(console: Console, title: str, found: Sequence[Mapping[str, Any]], floors: Floors, isa: str) -> None:
    rows = sorted({row["m"] for row in found})
    own = [row for row in found if "peer" not in row]
    table = Table("op", *(f"M={m}" for m in rows))
    for op in dict.fromkeys(row["op"] for row in own):
        table.add_row(op, *(_range(own, op, m, "ratio") for m in rows))
        if op in floors.ratios:
            table.add_row("  floor", *_floors(floors, floors.ratios[op], rows), style="dim", end_section=True)
    for peer in dict.fromkeys(row["peer"] for row in found if "peer" in row):
        of_peer = [row for row in found if row.get("peer") == peer]
        for op in dict.fromkeys(row["op"] for row in of_peer):
            table.add_row(f"{op} over {peer}", *(_range(of_peer, op, m, "over_peer") for m in rows))
        if peer in floors.over_peer:
            table.add_row("  floor", *_floors(floors, floors.over_peer[peer], rows), style="dim", end_section=True)
    console.print(f"{title}; {NOTE.format(isa=isa)}", table)
    few = min(rows)
    console.print(f"weights read at M={few}: GB/s, share of the roof in order (in four streams)")
    console.print(_bandwidth([row for row in own if row["m"] == few], own, floors))


def _bandwidth(mine: Sequence[Mapping[str, Any]], own: Sequence[Mapping[str, Any]], floors: Floors) -> Table:
    shapes = list(dict.fromkeys((row["n"], row["k"]) for row in mine))
    table = Table("op", *(f"{n} x {k}" for n, k in shapes), "floor", "error, all M")
    for op in dict.fromkeys(row["op"] for row in mine):
        cells = []
        for shape in shapes:
            row = next(row for row in mine if row["op"] == op and (row["n"], row["k"]) == shape)
            streams = row.get("roof_4_streams_gbps")
            beside = f" ({row['gbps'] / streams:.0%})" if streams else ""
            cells.append(f"{row['gbps']:.1f}  {row['gbps'] / row['roof_gbps']:.0%}{beside}")
        wanted = floors.of_roof.get(op)
        worst = max(row["error"] for row in own if row["op"] == op)
        table.add_row(op, *cells, f"{wanted:.0%}" if wanted else "", f"{worst:.1e}")
    return table


def _range(rows: Sequence[Mapping[str, Any]], op: str, m: int, column: str) -> str:
    """Median over the shapes, and the least where they differ."""
    values = [row[column] for row in rows if row["op"] == op and row["m"] == m]
    if not values:
        return ""
    middle, least = statistics.median(values), min(values)
    return f"{middle:.2f}" if len(values) == 1 else f"{middle:.2f} ({least:.2f})"


def _floors(floors: Floors, wanted: Sequence[float | None], rows: Sequence[int]) -> list[str]:
    by_rows = dict(zip(floors.rows, wanted, strict=True))
    return ["" if by_rows.get(m) is None else f"{by_rows[m]:g}" for m in rows]
