"""These run in vLLM's own environment: ``make test-engine-vllm`` makes that, and the checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
MODELS = Path(os.environ.get("QUANTDISPATCH_ENGINE_MODELS", HERE.parents[2] / ".cache" / "engines" / "models"))
#: a prompt of any vocabulary of 256 and more
IDS = [(i * 37 + 11) % 251 + 1 for i in range(40)]
#: "The capital of France is Paris. ..." and the like, in SmolLM2's tokens
TEXT = [504, 3575, 282, 4649, 314, 7042, 30, 657, 2869, 282, 260, 1175, 314, 2290, 351, 2988, 284, 260, 3575, 282, 8212]

Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Answers of a vLLM in a process of its own; see ``ask.py``. Keyword ``env``: more of its environment."""

    def asked(
        folder: str, names: list[str], *, env: dict[str, str] | None = None, timeout: int = 1200, **more: Any
    ) -> dict[str, Any]:
        scratch = tmp_path_factory.mktemp("ask")
        request = {"models": {name: str(MODELS / folder / name) for name in names}, "ids": IDS, **more}
        (scratch / "request.json").write_text(json.dumps(request))
        run = subprocess.run(
            [sys.executable, str(HERE / "ask.py"), str(scratch / "request.json"), str(scratch / "answer.json")],
            capture_output=True, text=True, timeout=timeout, env={**os.environ, **(env or {})},
        )  # fmt: skip
        if not (scratch / "answer.json").exists():
            pytest.fail(run.stderr[-4000:])
        answers: dict[str, Any] = json.loads((scratch / "answer.json").read_text())
        answers["log"] = run.stdout + run.stderr
        return answers

    return asked
