"""Runs the checks in ``interpreted/`` with Triton's interpreter, which has to be chosen before Triton is imported: each
file is a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILES = sorted((HERE / "interpreted").glob("check_*.py"))


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_interpreted_kernels(file: Path) -> None:
    pytest.importorskip("triton", reason="Triton is published for Linux only")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "--tb=short", str(file)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
