"""The check of the public interface's types can fail. `.ci/run` does it with the wheel, where mypy takes a minute."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

FILE = Path(__file__).with_name("consumer_types.py")
spec = importlib.util.spec_from_file_location("consumer_types", FILE)
assert spec is not None and spec.loader is not None
consumer = importlib.util.module_from_spec(spec)
spec.loader.exec_module(consumer)

PLACES = sorted(consumer.expected(consumer.FILES))
RIGHT = "\n".join(f"tests/{name}:{line}: error: Words  [{kind}]" for name, line, kind in PLACES)
ONE = RIGHT.splitlines()[0]
#: what mypy prints, its status, and that of the check
REPORTS = {
    "what is expected": (f"{RIGHT}\ntests/wrong.py:8: note: Words", 1, 0),
    "nothing": ("", 0, 1),
    "one fewer": (RIGHT.replace(ONE, ""), 1, 1),
    "another kind": (RIGHT.replace(ONE, ONE.replace("[", "[other-")), 1, 1),
    "one more": (f"{RIGHT}\ntests/right.py:3: error: Words  [misc]", 1, 1),
    "a crash": (RIGHT, 2, 1),
}


@pytest.mark.parametrize(("output", "status", "result"), REPORTS.values(), ids=REPORTS)
def test_reports(output: str, status: int, result: int, monkeypatch: pytest.MonkeyPatch) -> None:
    done = SimpleNamespace(stdout=output, stderr="", returncode=status)
    monkeypatch.setattr(subprocess, "run", lambda *args, **more: done)
    assert consumer.main("python") == result


def test_only_the_wrong_code_expects_errors() -> None:
    assert {name for name, _, _ in PLACES} == {"wrong.py"} and len(PLACES) >= 15
