"""Where engines refuse, ignore or mistake a config: what a plan says of it. And the list of all that engines do so:
tests/data/engine_surprises.toml has an entry for each item of the study, with the tests that show how it is done here.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engine_surprises import NUMBERS, PAGE, items, render
from quantdispatch.testing import Row, RowMismatch, check_row, dispatch_table, load_table, mutations

ROOT = Path(__file__).parents[2]
PLANS = load_table(ROOT / "tests" / "data" / "engine_surprises_plans.toml")
ITEMS = items()
KEYS = {"id", "engine", "section", "does", "here", "numbers", "plans", "tests", "not_ours"}
PROOFS = ("numbers", "plans", "tests")
#: sections of the study that say what an engine gets wrong; of vLLM's config a0 to a5, of both the letters
SECTIONS = {
    "vLLM 0.32.0": {"a0", "a1", "a2", "a3", "a4", "a5", "b", "c", "d", "e", "f", "g", "h"},
    "SGLang 0.5.23": {"a0", "a1", "a2", "a3", "b", "c", "d", "e", "f", "g"},
}


@dispatch_table(PLANS)
def test_plan(row: Row) -> None:
    check_row(row)


@dispatch_table(PLANS)
def test_a_plan_that_says_otherwise_fails(row: Row) -> None:
    flipped = [mutation for mutation in mutations(row) if mutation.of == "expectation"]
    assert flipped
    for mutation in flipped:
        with pytest.raises(RowMismatch):
            check_row(mutation.row)


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item["id"])
def test_every_item_is_shown_or_does_not_concern_us(item: dict[str, Any]) -> None:
    assert set(item) <= KEYS and set(item["engine"]) <= set(SECTIONS) and item["does"]
    proofs = [proof for key in PROOFS for proof in item.get(key, ())]
    if "not_ours" in item:
        assert not proofs and len(item["not_ours"].split()) > 7
    else:
        assert proofs and item["here"]


def test_what_items_name_is_there_and_every_case_is_named() -> None:
    assert len({item["id"] for item in ITEMS}) == len(ITEMS) > 100
    named = {key: {name for item in ITEMS for name in item.get(key, ())} for key in PROOFS}
    assert named["plans"] == {row.id for row in PLANS}
    assert named["numbers"] == _cases(ROOT / NUMBERS[0])
    for test in named["tests"]:
        path, _, name = test.partition("::")
        functions = {node.name for node in ast.walk(_parsed(ROOT / path)) if isinstance(node, ast.FunctionDef)}
        assert name.partition("[")[0] in functions, test


def test_every_section_has_items() -> None:
    for engine, sections in SECTIONS.items():
        found = {
            part for item in ITEMS if engine in item["engine"] for part in re.findall(r"\b[a-h]\d?", item["section"])
        }
        assert sections <= found, (engine, sections - found)


def test_the_page_is_not_stale() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run: python -m benchmarks.engine_surprises"


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _cases(path: Path) -> set[str]:
    """The ids of ``FAULTS``, which need torch to be imported."""
    calls = [node for node in ast.walk(_parsed(path)) if isinstance(node, ast.Call)]
    faults = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Fault"]
    return {call.args[0].value for call in faults if isinstance(call.args[0], ast.Constant)}
