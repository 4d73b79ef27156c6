"""vLLM's own tests (``tests_engine/vllm_own``): what was recorded of them stands in the docs, with a reason for each
difference that the plugin makes. No vLLM is needed to look."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

OWN = Path(__file__).parents[1] / "tests_engine" / "vllm_own"
RESULTS = json.loads((OWN / "results.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def run() -> Any:
    sys.path.insert(0, str(OWN))
    try:
        import run
    finally:
        sys.path.remove(str(OWN))
    return run


def test_the_page_has_the_last_results(run: Any) -> None:
    text = run.PAGE.read_text(encoding="utf-8")
    assert run.page(text, RESULTS) == text


def test_every_difference_has_a_reason_and_every_reason_a_difference(run: Any) -> None:
    assert run.unexplained(RESULTS) == []
    differing = {f"{row['file']}::{row['test']}" for row in RESULTS if row.keys() & {"reason with", "reason class"}}
    assert set(run.DIFFERENCES) == differing


def test_a_difference_without_a_reason_is_named(run: Any) -> None:
    row = {"file": "tests/a.py", "test": "test_b", "without": {"passed": 1}, "with": {"failed": 1}, "reason with": "E"}
    assert run.unexplained([row]) == ["tests/a.py::test_b with: E"]


def test_a_page_without_marks_is_an_error(run: Any) -> None:
    with pytest.raises(ValueError, match="one of each"):
        run.page("no marks", RESULTS)


def test_outcomes_of_parameters_are_counted_by_function(run: Any) -> None:
    def outcomes(second: str) -> dict[str, dict[str, str]]:
        return {
            "tests/a.py::test_b[1]": {"outcome": "passed", "reason": ""},
            "tests/a.py::test_b[2]": {"outcome": second, "reason": "E" if second == "failed" else ""},
        }

    (row,) = run.rows("tests/a.py", {"without": outcomes("passed"), "with": outcomes("failed")})
    assert row["without"] == {"passed": 2} and row["with"] == {"passed": 1, "failed": 1} and row["reason with"] == "E"
    (row,) = run.rows("tests/a.py", {"without": outcomes("failed"), "with": outcomes("failed")})
    assert "reason with" not in row
