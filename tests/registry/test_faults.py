"""Public fault reports, each as rows: the same input, and what must come of it here.

``tests/data/faults``: ``reports.jsonl`` (what was reported, and what would have been right), ``faults.toml`` (rows),
``elsewhere.toml`` (reports whose input is no config, name or shape, with the reason).
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from quantdispatch.testing import Row, check_row, dispatch_table, load_table

FAULTS = Path(__file__).parents[1] / "data" / "faults"
REPORTS = [json.loads(line) for line in (FAULTS / "reports.jsonl").read_text().splitlines()]
ELSEWHERE: dict[str, str] = tomllib.loads((FAULTS / "elsewhere.toml").read_text())


@dispatch_table(FAULTS / "faults.toml")
def test_fault(row: Row) -> None:
    check_row(row)


def test_every_report_is_accounted_for_once() -> None:
    sources = [report["source"] for report in REPORTS]
    assert len(set(sources)) == len(sources) == 86
    assert all(report["symptom"] and report["input"] and report["right"] for report in REPORTS)
    rows = {row.notes["source"] for row in load_table(FAULTS / "faults.toml")}
    assert not rows & set(ELSEWHERE) and rows | set(ELSEWHERE) == set(sources)
    assert all(len(reason.split()) > 5 for reason in ELSEWHERE.values())
