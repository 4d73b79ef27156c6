"""``python -m benchmarks.plots RESULTS.json PICTURE.svg``: what ``benchmarks.cpu_linear --json`` wrote, as a picture.

Left: packed bytes read in a second, beside what one thread can read at all. Right: how many times as fast as bf16
``F.linear``. Both against M, the rows of x. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

Series = dict[str, dict[int, float]]


def series(rows: list[dict[str, Any]], field: str) -> Series:
    """Of each op and M, the median of ``field`` over the shapes."""
    values: dict[tuple[str, int], list[float]] = defaultdict(list)
    for row in rows:
        if row.get(field) is not None:
            values[row["op"], row["m"]].append(row[field])
    found: Series = defaultdict(dict)
    for (op, m), numbers in sorted(values.items()):
        found[op][m] = statistics.median(numbers)
    return dict(found)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the picture. Raises ``ValueError`` where there is nothing to draw."""
    if not rows:
        raise ValueError("no rows to draw")
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.hashsalt": "quantdispatch", "font.size": 9}
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for axes, field in ((left, "gbps"), (right, "ratio")):
        for op, points in series(rows, field).items():
            axes.plot(list(points), list(points.values()), marker="o", markersize=3, linewidth=1.2, label=op)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted({row["m"] for row in rows}), [str(m) for m in sorted({row["m"] for row in rows})])
        axes.set_xlabel("rows of x (M)")
        axes.grid(alpha=0.3, linewidth=0.5)
    roof = statistics.median(row["roof_gbps"] for row in rows)
    left.axhline(roof, color="black", linestyle="--", linewidth=1, label=f"read roof, {roof:.1f} GB/s")
    right.axhline(1.0, color="black", linestyle="--", linewidth=1, label="bf16 F.linear")
    right.set_yscale("log")
    left.set_ylabel("packed weights read, GB/s")
    right.set_ylabel("times as fast as bf16 F.linear")
    left.legend(fontsize=7)
    right.legend(fontsize=7)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    draw(json.loads(options.results.read_text(encoding="utf-8"))["rows"], options.picture)


if __name__ == "__main__":
    main()
