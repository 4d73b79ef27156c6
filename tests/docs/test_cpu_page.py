"""The tables of docs/cpu-native.md are what the benchmarks' results give."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from benchmarks.cpu_linear import FLOORS
from benchmarks.cpu_page import PAGE, below_floors, page, read, rendered

AGAIN = "run: python -m benchmarks cpu_page --page"


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return read()


def test_the_tables_are_up_to_date(results: dict[str, Any]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text, results) == text, AGAIN


def test_another_result_is_another_table(results: dict[str, Any]) -> None:
    for name in ("cpu_linear", "cpu_moe"):
        other = copy.deepcopy(results)
        for row in other[name]["rows"]:
            row["ratio"] += 1
        assert rendered(other) != rendered(results)


def test_every_op_was_measured_and_is_right(results: dict[str, Any]) -> None:
    rows = results["cpu_linear"]["rows"]
    assert {(row["op"], row["m"]) for row in rows} == {(op, m) for op in FLOORS.ratios for m in FLOORS.rows}
    assert all(row["error"] <= 2.2e-3 for row in (*rows, *results["cpu_moe"]["rows"]))


def test_what_is_below_its_floor_is_named_on_the_page(results: dict[str, Any]) -> None:
    """What limits such a cell stands below the tables."""
    text = PAGE.read_text(encoding="utf-8").partition("What limits them")[2]
    for line in below_floors(results):
        assert line.partition(" ")[0] in text, line
