"""The part of ``doctor`` about the CPU kernels that were compiled with the package."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from ..registry.environment import native_library
from .output import Output

LOST = "fast products on the CPU (torch's own ops serve instead, several times slower)"
REMEDY = "install a C++17 compiler (g++ or clang++), then pip install --force-reinstall --no-deps quantdispatch"
_SELFTEST = "quantdispatch.backends.cpu.native.selftest"
_SECONDS = 120


def native_report() -> dict[str, Any]:
    """``state``: "ok", with what the self-test tells; "missing", with what is ``lost`` and the ``remedy``; "broken",
    with what is ``lost`` and the ``error``, which says what would help."""
    if native_library() is None:
        return {"state": "missing", "lost": LOST, "remedy": REMEDY}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", _SELFTEST], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        told = json.loads(done.stdout) if done.returncode == 0 else {"error": _last_line(done)}
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        told = {"error": str(error)}
    if told["error"] is None:
        return {"state": "ok", **told}
    return {"state": "broken", **told, "lost": LOST}


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"the self-test ended with status {done.returncode}"


def print_native(output: Output, report: dict[str, Any]) -> None:
    if report["state"] == "ok":
        best = "" if report["isa"] == report["best_isa"] else f" (this processor has {report['best_isa']})"
        pool = "torch's OpenMP pool" if report["shares_pool"] else "threads of their own"
        count = report["threads"]
        threads = f"{count} thread{'s' if count != 1 else ''} of {pool}" if report["shares_pool"] else pool
        output.line(("native kernels", "bold"), f"    {report['isa']}{best}, {threads}")
        return
    missing = report["state"] == "missing"
    output.line(
        ("native kernels", "bold"),
        "    ",
        ("missing", "yellow") if missing else ("broken", "bold red"),
        f"  without them no {report['lost']}",
    )
    output.line(f"    {report['remedy'] if missing else report['error']}")
