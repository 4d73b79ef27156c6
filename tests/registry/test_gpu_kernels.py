"""Kernels on GPUs that are not here: tests/data/gpu_kernels.toml, and the page that shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantdispatch.cli.gpu_docs import ENVIRONMENTS, TASKS, answers
from quantdispatch.registry.gpus import SHOWN
from quantdispatch.registry.registry import build
from quantdispatch.registry.rules import builtin_rules
from quantdispatch.testing import Row, RowMismatch, check_row, dispatch_table, load_table, mutations

TABLE = load_table(Path(__file__).parents[1] / "data" / "gpu_kernels.toml")


@dispatch_table(TABLE)
def test_row(row: Row) -> None:
    check_row(row)


@dispatch_table(TABLE)
def test_row_fails_when_any_of_its_expectations_is_flipped(row: Row) -> None:
    for mutation in (m for m in mutations(row) if m.of == "expectation"):
        with pytest.raises(RowMismatch):
            check_row(mutation.row)


def test_every_family_has_rows() -> None:
    asked = {row.asks["device"] for row in TABLE}
    assert set(SHOWN) <= asked


@pytest.mark.parametrize("title", ENVIRONMENTS)
def test_the_page_answers_for_every_weight_scheme(title: str) -> None:
    registry = build()
    found = list(answers(registry, ENVIRONMENTS[title]))
    assert len(found) == len(TASKS)
    schemes = {registry.scheme_class(rule).name for rule in builtin_rules()}
    # output quantization, fp6 and what is not a matrix have no kernel for GPUs but the reference
    absent = {"kv_fp8", "dense", "wNa8o8_int", "wNa4_int", "w6a8_mxfp6", "w6a16_mxfp6", "w4a8_mxfp4"}
    assert {scheme for _, scheme, _ in found} == schemes - absent
    assert all("none" not in names for _, _, names in found)


def test_a_provider_changes_only_what_it_serves() -> None:
    registry = build()
    alone, vllm, sglang = (list(answers(registry, environment)) for environment in ENVIRONMENTS.values())
    for mine, theirs in ((vllm, "marlin/vllm"), (sglang, "marlin/sglang")):
        for (_, _, before), (_, _, after) in zip(alone, mine, strict=True):
            changed = [new for old, new in zip(before, after, strict=True) if old != new]
            assert all(name.startswith(theirs) for name in changed)
            assert before[-1] == after[-1], "Marlin is for CUDA"
