"""``benchmarks/gpu_check`` runs: on the CPU, in the interpreter, and without what a bare machine does not have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is published for Linux only")
ROOT = Path(__file__).parents[2]
MISSING = ("pydantic", "pluggy", "regex", "re2", "typer", "rich", "safetensors", "huggingface_hub", "transformers",
           "compressed_tensors", "hypothesis")  # fmt: skip
START = "import runpy, sys; sys.modules.update(dict.fromkeys({missing})); sys.argv = {argv}; " \
        "runpy.run_module('benchmarks.gpu_check', run_name='__main__')"  # fmt: skip


def test_the_dry_run_measures_every_section_with_torch_and_triton_alone(tmp_path: Path) -> None:
    (tmp_path / "quantdispatch").symlink_to(ROOT)
    figures = tmp_path / "figures.json"
    argv = ["gpu_check", "--dry-run", "--json", str(figures), "--seconds", "400"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "QUANTDISPATCH_CACHE": str(tmp_path),
                   "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}  # fmt: skip
    command = [sys.executable, "-c", START.format(missing=MISSING, argv=argv)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    told = json.loads(figures.read_text())
    assert told["without_pydantic"] and told["failed"] == 0
    assert "out of time" not in done.stdout
    errors = [error for row in told["correctness"] for error in row["errors"].values()]
    assert errors and max(errors) < 2e-3
    assert all(row["seconds"] > 0 and row["bf16_seconds"] > 0 for row in told["timing"])
    assert told["tuned"] and (tmp_path / "triton-configs.json").is_file()


def test_without_a_gpu_it_says_so() -> None:
    command = [sys.executable, "-m", "benchmarks.gpu_check"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "sees no GPU" in done.stderr
