"""CPU seconds (user and system) of whole processes that must be quick: the import, and explaining without torch."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from typing import Any

from . import models


def measure(runs: int = 7) -> list[dict[str, Any]]:
    """A row a command, the median of ``runs``."""
    folder = models.folder("w4a16-asym")
    commands = {
        "python -c pass": ["-c", "pass"],
        "import quantdispatch": ["-c", "import quantdispatch"],
        "import quantdispatch and its planner": ["-c", "import quantdispatch; quantdispatch.plan"],
        "quantdispatch explain config.json": ["-m", "quantdispatch.cli", "explain", str(folder / "config.json")],
        "quantdispatch explain folder": ["-m", "quantdispatch.cli", "explain", str(folder)],
    }
    return [
        {"command": name, "cpu_seconds": statistics.median(_cpu([sys.executable, *words]) for _ in range(runs))}
        for name, words in commands.items()
    ]


def _cpu(command: list[str]) -> float:
    # an installed package has its bytecode; an editable one gets it at the first start, unless that is switched off
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} exits with {process.returncode}")
    return usage.ru_utime + usage.ru_stime
