"""Table and picture of the README are what the benchmark's results give."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
from doc_pages import ROOT

from benchmarks.bars import bars
from benchmarks.front_page import CANDIDATES, PICTURE, README, RESULTS, picture, readme, rendered

AGAIN = "run: python -m benchmarks front_page --page"


@pytest.fixture(scope="module")
def results() -> dict:
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def test_the_table_is_up_to_date(results: dict) -> None:
    text = README.read_text(encoding="utf-8")
    assert readme(text, results) == text, AGAIN


def test_the_picture_is_up_to_date(results: dict) -> None:
    assert PICTURE.read_text(encoding="utf-8") == picture(results), AGAIN


def test_all_engines_and_checkpoints_were_measured(results: dict) -> None:
    assert {(row["engine"], row["checkpoint"]) for row in results["rows"]} == set(CANDIDATES)
    assert all(("fails" in row) != ("over_bf16" in row) for row in results["rows"])


def test_another_result_is_another_table(results: dict) -> None:
    other = json.loads(json.dumps(results))
    row = next(row for row in other["rows"] if row["engine"] == "quantdispatch")
    row["over_bf16"] += 1
    assert rendered(other) != rendered(results) and picture(other) != picture(results)


def test_what_an_engine_hides_or_answers_wrongly_is_said(results: dict) -> None:
    other = json.loads(json.dumps(results))
    row = next(row for row in other["rows"] if row["engine"] == "quantdispatch")
    row |= {"resident_bytes": 1, "answer": "Lyon"}
    assert "not counted (!)" in rendered(other)


def test_bars_are_drawn_to_scale() -> None:
    root = ElementTree.fromstring(bars(["a", "b<c"], {"one": [1.0, 2.0], "two": [None, 3.0]}, [True, False]))
    widths = [float(bar.attrib["width"]) for bar in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert widths[1] == 2 * widths[0] == widths[2] and len(widths) == 3


@pytest.mark.parametrize("name", ["architecture.svg", "speed-and-memory.svg"])
def test_pictures_are_well_formed(name: str) -> None:
    assert ElementTree.parse(ROOT / "docs" / "pictures" / name).getroot().tag.endswith("svg")
