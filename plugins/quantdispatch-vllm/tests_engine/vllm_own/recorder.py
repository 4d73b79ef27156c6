"""A plugin of pytest for vLLM's own tests: makes our plugin active as vLLM would, and writes down what became of each
test. ``OUTCOMES`` names the file to write, ``SIDE`` one of :data:`SIDES`."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import pytest

#: without us; with the plugin loaded; and with our class of configs where tests say the name of vLLM's
SIDES = ("without", "with", "class")
_WORSE = ("passed", "skipped", "xfailed", "failed", "no import")

outcomes: dict[str, dict[str, str]] = {}


def pytest_configure() -> None:
    if os.environ["SIDE"] == "without":
        return
    from vllm.model_executor.layers.quantization import get_quantization_config
    from vllm.model_executor.layers.quantization.compressed_tensors import compressed_tensors
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    ours = get_quantization_config("compressed-tensors")
    if ours.__name__ != "QuantDispatchConfig":
        pytest.exit(f"the plugin is not active: vLLM has {ours}", returncode=4)
    if os.environ["SIDE"] == "class":
        compressed_tensors.CompressedTensorsConfig = ours


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
    before = outcomes.setdefault(report.nodeid, {"outcome": "passed", "reason": ""})
    if _WORSE.index(outcome) > _WORSE.index(before["outcome"]):
        before |= {"outcome": outcome, "reason": _reason(report)}


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.outcome != "passed":
        outcome = "no import" if report.outcome == "failed" else report.outcome
        outcomes[report.nodeid] = {"outcome": outcome, "reason": _reason(report)}


def pytest_sessionfinish() -> None:
    with open(os.environ["OUTCOMES"], "w") as stream:
        json.dump(outcomes, stream)


def _reason(report: Any) -> str:
    """The error, or why it is skipped, in a line without addresses, and without folders of this machine."""
    text = report.longrepr
    if isinstance(text, tuple):
        line = text[2].removeprefix("Skipped: ")
    else:
        crash = getattr(text, "reprcrash", None)
        errors = re.findall(r"^E +(\w[\w.]*(?:Error|Exception|Exit): .*)$", str(text), re.MULTILINE)
        line = crash.message if crash is not None else (errors[-1] if errors else str(text).strip().splitlines()[-1])
    line = line.strip().splitlines()[0] if line.strip() else "assertion without a text"
    return re.sub(r" at 0x[0-9a-f]+|/\S*/(?=\w+\.)", "", line)[:200]
