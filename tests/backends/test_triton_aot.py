"""Kernels compiled for devices that are not here: the instructions they use, and the shared memory they ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is published for Linux only")
from quantdispatch.backends.triton import aot  # noqa: E402
from quantdispatch.backends.triton.config import SHARED  # noqa: E402

CASES = list(aot.cases())
#: the most bytes a thread may spill: a handful of addresses outside of the loop, no more
SPILLED = 96


def check(case: aot.Case) -> None:
    report = aot.report(case)
    if case.expects is None:
        assert not report.instructions
    else:
        # the one class that is expected, and no other beside it
        assert set(report.instructions) == {case.expects}, report
    assert report.shared <= SHARED[case.family], report
    assert report.spilled <= SPILLED, report


@pytest.mark.parametrize("case", [c for c in CASES if c.common], ids=lambda c: c.id)
def test_instructions_and_memory(case: Any) -> None:
    check(case)


@pytest.mark.slow  # a hundred and more kernels, some seconds each
@pytest.mark.parametrize("case", [c for c in CASES if not c.common], ids=lambda c: c.id)
def test_instructions_and_memory_of_all_forms(case: Any) -> None:
    check(case)


def test_the_page_shows_every_kernel() -> None:
    text = (Path(__file__).parents[2] / "docs" / "triton.md").read_text(encoding="utf-8")
    rows = {tuple(cell.strip() for cell in line.split("|")[1:3]) for line in text.splitlines() if line.startswith("|")}
    missing = [case.id for case in CASES if (case.family, case.name) not in rows]
    assert not missing, "write docs/triton.md again: make triton-page"
