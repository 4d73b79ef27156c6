"""In processes of their own: SGLang's loader and the entry point, and an SGLang that is to be left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

STUBS = Path(__file__).parent / "stubs"
ASK = """
import logging
logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
{before}
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.layers import quantization as q
print("class", q.get_quantization_config("compressed-tensors").__module__)
"""
OLD = "import importlib.metadata as m; real = m.version; m.version = lambda n: '0.5.9' if n == 'sglang' else real(n)"
NEW = OLD.replace("0.5.9", "0.6.0")
BROKEN = "import sglang.srt.layers.parameter as p; del p.BasevLLMParameter"
MOVED = (
    "import sglang.srt.layers.quantization.marlin_utils as p; f = p.marlin_zero_points; p.marlin_zero_points = lambda a: f"
)


def ask(before: str = "", **environment: str) -> tuple[str, list[str]]:
    """Where the config's class is from, and what was warned of."""
    paths = {"PYTHONPATH": str(STUBS), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ASK.format(before=before)], capture_output=True, text=True,
        env={**os.environ, **paths, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    where = next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("class "))
    return where, [line for line in done.stderr.splitlines() if "quantdispatch" in line]


def test_installing_is_all() -> None:
    where, warned = ask()
    assert where == "quantdispatch_sglang.config" and not warned


@pytest.mark.parametrize(
    ("environment", "before"),
    [({"QUANTDISPATCH_SGLANG": "0"}, ""), ({"SGLANG_PLUGINS": "another"}, "")],
    ids=["switched off", "not among SGLANG_PLUGINS"],
)
def test_left_off(environment: dict[str, str], before: str) -> None:
    where, warned = ask(before, **environment)
    assert where.startswith("sglang.") and not warned


@pytest.mark.parametrize(
    ("before", "says"),
    [
        (OLD, "0.5.9 is too old; 0.5.23 is needed"),
        (NEW, "0.6.0 is newer than this adapter"),
        (BROKEN, "has no BasevLLMParameter"),
        (MOVED, "takes no zp, size_k, size_n, num_bits"),
    ],
    ids=["too old", "too new", "a part is missing", "a part has changed"],
)
def test_an_sglang_that_it_does_not_fit_starts_as_without_it(before: str, says: str) -> None:
    where, warned = ask(before)
    assert where.startswith("sglang.") and len(warned) == 1 and says in warned[0]
