"""``python -m benchmarks cpu_page [--vllm PYTHON] [--page]``: the figures of docs/cpu-native.md.

Runs ``cpu_linear``, ``cpu_moe`` and ``end_to_end``, each in a process of its own, and writes
benchmarks/results/cpu_*.json, the tables in docs/cpu-native.md and docs/pictures/cpu-linear.svg (matplotlib, if it is
installed). A quarter of an hour, on a machine that does nothing else. ``--vllm PYTHON``: of an environment that has
vLLM for CPUs and quantdispatch, whose int4 kernel is measured beside ours; else its figures are kept. ``--page``
measures nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .cpu_linear import FLOORS
from .preset_page import table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "cpu-native.md"
PICTURE = ROOT / "docs" / "pictures" / "cpu-linear.svg"
MARKS = ("<!-- measured -->", "<!-- /measured -->")
#: modules by the name of their file of results
RUNS = {
    "cpu_linear": ("benchmarks.cpu_linear",),
    "cpu_moe": ("benchmarks.cpu_moe",),
    "cpu_end_to_end": ("benchmarks", "end_to_end"),
}
PEERS = {"vllm": "vLLM's kernel", "torch_int4": "torch's int4 op"}

Rows = Sequence[Mapping[str, Any]]


def measure(vllm: str | None) -> None:
    """Write the files of results."""
    for name, (module, *arguments) in RUNS.items():
        _run(sys.executable, [module, *arguments], RESULTS / f"{name}.json")
    if vllm is not None:
        peers = ["benchmarks.cpu_linear", "--peers", "--ops", "w4a16_asym"]
        _run(vllm, peers, RESULTS / "cpu_peers.json")


def _run(python: str, module: list[str], to: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    subprocess.run([python, "-m", *module, "--json", str(to)], check=True, cwd=ROOT, env=environment)


def read() -> dict[str, Any]:
    """The results by the name of their file."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("cpu_*.json"))}


def rendered(results: Mapping[str, Any]) -> str:
    """The tables, and what they were measured on."""
    linear, moe = results["cpu_linear"], results["cpu_moe"]
    return "\n".join([
        _head(linear),
        "",
        _ratios(linear["rows"], "op"),
        f"Over {' and '.join(PEERS.values())} (int4 with zero points, groups of 128), in one run of theirs:",
        "",
        _peers(results["cpu_peers"]["peers"]),
        "Routed experts (8 experts, 1024 x 2048, top-2) over a loop over experts in bf16:",
        "",
        _ratios(moe["rows"], "op"),
        "SmolLM2-135M in transformers, one thread:",
        "",
        _end_to_end(results["cpu_end_to_end"]["end_to_end"]).rstrip(),
    ])  # fmt: skip


def _head(linear: Mapping[str, Any]) -> str:
    machine, rows = linear["machine"], linear["rows"]
    shapes = ", ".join(f"{n} x {k}" for n, k in _shapes(rows))
    sentences = (
        f"On {machine['processor']} (`{machine['isa']}`), torch {machine['torch']}, one thread.",
        f"Time of bf16 `F.linear` over ours, median of the shapes {shapes};",
        f"then what is read of the packed weight at M = 1, where the read roof is {_roof(rows):.1f} GB/s in order",
        f"and {linear['roof_4_streams_gbps']:.1f} in four streams; then the largest error against float64.",
    )
    return textwrap.fill(" ".join(sentences), 120)


def _shapes(rows: Rows) -> list[tuple[int, int]]:
    return list(dict.fromkeys((row["n"], row["k"]) for row in rows))


def _roof(rows: Rows) -> float:
    return statistics.median(row["roof_gbps"] for row in rows)


def _median(rows: Rows, field: str, **where: Any) -> float:
    return statistics.median(row[field] for row in rows if all(row[key] == value for key, value in where.items()))


def _ratios(rows: Rows, first: str) -> str:
    many = sorted({row["m"] for row in rows})
    cells = []
    for op in dict.fromkeys(row["op"] for row in rows):
        read = _median(rows, "gbps", op=op, m=1)
        cells.append([
            f"`{op}`", *(f"{_median(rows, 'ratio', op=op, m=m):.2f}" for m in many),
            f"{read:.1f} GB/s", f"{max(row['error'] for row in rows if row['op'] == op):.1e}",
        ])  # fmt: skip
    return table([first, *(f"M = {m}" for m in many), "read", "error"], cells)


def _peers(rows: Rows) -> str:
    many = sorted({row["m"] for row in rows})
    cells = [
        [label, *(f"{_median(rows, 'over_peer', peer=peer, m=m):.2f}" for m in many)]
        for peer, label in PEERS.items()
        if any(row["peer"] == peer for row in rows)
    ]
    return table(["ours over", *(f"M = {m}" for m in many)], cells)


def _end_to_end(rows: Rows) -> str:
    cells = [
        [row["task"], row["checkpoint"], f"{row['tokens_per_second']:.1f}", f"{row['over_bf16']:.2f}"] for row in rows
    ]
    return table(["task", "checkpoint", "tokens/s", "over bf16"], cells)


def below_floors(results: Mapping[str, Any]) -> list[str]:
    """Cells of the linear table that are below their floor."""
    rows = results["cpu_linear"]["rows"]
    return [
        f"{op} at M = {m}: {_median(rows, 'ratio', op=op, m=m):.2f} of {floor}"
        for op, floors in FLOORS.ratios.items()
        for m, floor in zip(FLOORS.rows, floors, strict=True)
        if floor is not None and _median(rows, "ratio", op=op, m=m) < floor
    ]


def page(text: str, results: Mapping[str, Any]) -> str:
    """``text`` with the tables between the marks."""
    head, _, rest = text.partition(MARKS[0])
    _, _, tail = rest.partition(MARKS[1])
    return f"{head}{MARKS[0]}\n{rendered(results)}\n{MARKS[1]}{tail}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks cpu_page", description=__doc__)
    parser.add_argument("--vllm", metavar="PYTHON", help="of an environment that has vLLM and quantdispatch")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page of the last results")
    options = parser.parse_args(arguments)
    if not options.page:
        measure(options.vllm)
    results = read()
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    if importlib.util.find_spec("matplotlib"):
        from .plots import draw

        draw(results["cpu_linear"]["rows"], PICTURE)
    for line in below_floors(results):
        print("below its floor:", line)


if __name__ == "__main__":
    main()
