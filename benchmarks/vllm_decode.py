"""Tokens a second of vLLM on this CPU, with the plugin and without it: a table for docs/vllm.md.

``.cache/engines/vllm/bin/python benchmarks/vllm_decode.py FOLDER...`` (after ``make test-engine-vllm``). Each
checkpoint is loaded in two processes at once, and those are asked by turns: what else the machine does hits both. The
best of the rounds counts. ``--eager`` leaves out compilation; ``--preload LIBRARY`` is what vLLM's own documentation
recommends (libiomp5, tcmalloc).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BATCHES = (1, 16)
PROMPT = 512
SIDES = {"with": "1", "without": "0"}


def child(folder: str, eager: bool, tokens: int) -> None:
    """Loads, says so, and answers each line of input, ``decode N`` or ``prefill``, with a rate in a line of JSON."""
    from vllm import LLM, SamplingParams

    answers = os.fdopen(int(os.environ["ANSWERS"]), "w", buffering=1)
    try:
        llm = LLM(
            folder, dtype="bfloat16", enforce_eager=eager, max_model_len=2 * PROMPT, max_num_seqs=max(BATCHES),
            disable_log_stats=True, skip_tokenizer_init=True, enable_prefix_caching=False,
        )  # fmt: skip
    except Exception as error:  # what stock vLLM refuses stands in the table
        answers.write(json.dumps({"error": str(error)}) + "\n")
        return

    def run(count: int, length: int, new: int) -> float:
        prompts = [{"prompt_token_ids": [(i * 7 + n) % 1000 + 1 for i in range(length)]} for n in range(count)]
        start = time.perf_counter()
        llm.generate(
            prompts, SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False), use_tqdm=False
        )
        return time.perf_counter() - start

    run(1, 8, 2)
    answers.write(json.dumps({"loaded": True}) + "\n")
    for line in sys.stdin:
        what, _, count = line.strip().partition(" ")
        if what == "prefill":
            rate = PROMPT / run(1, PROMPT, 1)
        else:
            # what comes before the first token is not decoding
            rate = int(count) * tokens / (run(int(count), 8, tokens + 1) - run(int(count), 8, 1))
        answers.write(json.dumps({"rate": rate}) + "\n")


class Side:
    """One vLLM process."""

    def __init__(self, folder: str, enabled: str, options: argparse.Namespace) -> None:
        reading, writing = os.pipe()
        env = {
            **os.environ, "QUANTDISPATCH_VLLM": enabled, "ANSWERS": str(writing), "VLLM_CPU_KVCACHE_SPACE": "1",
            "HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        }  # fmt: skip
        if options.preload:
            env["LD_PRELOAD"] = ":".join(options.preload)
        command = [sys.executable, __file__, "--child", folder, "--tokens", str(options.tokens)]
        self.process = subprocess.Popen(
            command + (["--eager"] if options.eager else []), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env=env, text=True, pass_fds=[writing],
        )  # fmt: skip
        os.close(writing)
        self.answers = os.fdopen(reading)
        self.error: str | None = self._read().get("error")

    def _read(self) -> dict[str, Any]:
        line = self.answers.readline()
        found: dict[str, Any] = json.loads(line) if line else {"error": "the process ended"}
        return found

    def ask(self, what: str) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return float(self._read().get("rate", 0.0))

    def close(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait(60)


def measure(folder: str, options: argparse.Namespace) -> dict[str, dict[str, float | None]]:
    """Rate by what is asked and side; ``None`` where that side refuses the checkpoint."""
    sides = {name: Side(folder, enabled, options) for name, enabled in SIDES.items()}
    for name, side in sides.items():
        if side.error is not None:
            print(f"{Path(folder).name} {name}: {side.error.splitlines()[0][:200]}", file=sys.stderr)
    asked = [*(f"decode {batch}" for batch in BATCHES), "prefill"]
    rates: dict[str, dict[str, float | None]] = {what: dict.fromkeys(sides) for what in asked}
    for _ in range(options.rounds):
        for what in asked:
            for name, side in sides.items():
                if side.error is None:
                    rates[what][name] = max(rates[what][name] or 0.0, side.ask(what))
    for side in sides.values():
        side.close()
    return rates


def row(folder: str, rates: dict[str, dict[str, float | None]]) -> str:
    cells = [Path(folder).name]
    for both in rates.values():
        ours, stock = both["with"], both["without"]
        cells += [_number(ours), _number(stock), f"{ours / stock:.2f}" if ours and stock else "-"]
    return f"| {' | '.join(cells)} |"


def _number(rate: float | None) -> str:
    return "refused" if rate is None else f"{rate:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--child", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--tokens", type=int, default=48, help="decoded for each sequence")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--preload", action="append", metavar="LIBRARY")
    options = parser.parse_args()
    if options.child:
        child(options.child, options.eager, options.tokens)
        return
    titles = [f"{what}, {side}" for what in ("batch 1", "batch 16", "prefill") for side in ("with", "without", "ratio")]
    print(f"| checkpoint | {' | '.join(titles)} |\n|{' --- |' * (len(titles) + 1)}", flush=True)
    for folder in options.folders:
        print(row(folder, measure(folder, options)), flush=True)


if __name__ == "__main__":
    main()
