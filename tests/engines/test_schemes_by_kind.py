"""Every scheme for every kind of layer: a checkpoint that compressed-tensors writes, against the decompressed model.

``python -m benchmarks.schemes_by_kind`` makes docs/schemes-by-kind.md of what these tests measure.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="models are transformers models")
pytest.importorskip("compressed_tensors", reason="checkpoints are written by compressed-tensors")

from expected_logits import expected_logits  # noqa: E402
from scheme_cases import CASES, IDS, PLUGIN, Case, Row, write_case  # noqa: E402

import quantdispatch as qd  # noqa: E402
from benchmarks.schemes_by_kind import KINDS, PAGE, cases_of_page, pairs_of_page, render, rule_pairs  # noqa: E402
from quantdispatch.testing import registry_with, using_registry  # noqa: E402

ROOT = Path(__file__).parents[2]
WRITER = f"compressed-tensors {importlib.metadata.version('compressed-tensors')}"
#: relative norm: what the order of fp32 sums makes of it
EXACT = 5e-6
#: where such a sum falls on the other side of a step of the activations, of what quantizing them does at all
ROUNDING = 0.02
#: in bf16 every step of the model rounds: this is coarse, and test_every_variant.py compares layer by layer
BF16 = 4e-2
#: and a rounding of activations that it moves is a whole step, as large as what quantizing them does
BF16_ROUNDING = 1.5
#: column of the page -> backend, dtype
RUNS = {"reference": ("reference", torch.float32), "cpu": (None, torch.float32), "bf16": (None, torch.bfloat16)}


@cache
def _with_plugin() -> Any:
    sys.path.insert(0, str(ROOT / "plugins" / PLUGIN / "src"))
    return registry_with("quantdispatch_asym_moe")


@contextmanager
def _installed(case: Case) -> Iterator[None]:
    with using_registry(_with_plugin()) if case.plugin else nullcontext():
        yield


def distance(ours: torch.Tensor, truth: torch.Tensor) -> float:
    return float((ours.double() - truth.double()).norm() / truth.double().norm())


@torch.no_grad()
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_logits_are_those_of_the_decompressed_model(case: Case, tmp_path: Path) -> None:
    if "mxfp6" in case.scheme:
        pytest.importorskip("compressed_tensors.compressors.mxfp6", reason="this writer has no mxfp6")
    folder = write_case(case, tmp_path)
    truth = expected_logits(folder, IDS)
    assert truth.isfinite().all() and float(truth.std()) > 0.5
    effect = 0.0
    if case.group.inputs is not None:
        effect = distance(expected_logits(folder, IDS, activations=False), truth)
        assert effect > 2e-3, "a case that would pass with activations left alone"
    errors, kernels = {}, {}
    with _installed(case):
        for column, (backend, dtype) in RUNS.items():
            model = qd.load(folder, dtype=dtype, backend=backend)
            kernels[column] = ", ".join(sorted(_kernels(model, case)))
            errors[column] = distance(model(IDS).logits, truth)
    assert kernels["reference"].startswith("reference") or case.scheme == "dense"
    assert max(errors["reference"], errors["cpu"]) < EXACT + ROUNDING * effect, (errors, effect)
    assert errors["bf16"] < BF16 + BF16_ROUNDING * effect, (errors, effect)
    Row(case.scheme, case.kind, case.label, case.plugin, WRITER, errors, kernels, effect).record()


def _kernels(model: Any, case: Case) -> set[str]:
    """The kernels of the layers of the case's kind, all of which have its scheme, and no others."""
    layers = model.quantdispatch_plan.layers.values()
    # a router is a linear layer to the plan, and nobody quantizes it
    mine = [layer for layer in layers if layer.kind == case.kind and not layer.name.endswith(".mlp.gate")]
    assert mine and {layer.scheme for layer in mine} == {case.scheme}
    if case.scheme != "dense":
        assert {layer.kind for layer in layers if layer.scheme != "dense"} == {case.kind}
    return {layer.kernel or "torch" for layer in mine}


@pytest.mark.parametrize("case", [case for case in CASES if case.plugin], ids=lambda case: case.id)
def test_without_the_plugin_its_name_is_said(case: Case, tmp_path: Path) -> None:
    with pytest.raises(qd.PlanError, match=PLUGIN) as caught:
        qd.load(write_case(case, tmp_path))
    assert all(isinstance(error, qd.NoSchemeFound) for error in caught.value.errors)


def test_every_pair_of_the_rule_table_has_a_case() -> None:
    assert {(case.scheme, case.kind) for case in CASES} == rule_pairs()


def test_the_page_is_not_stale() -> None:
    text = PAGE.read_text(encoding="utf-8")
    again = "run: python -m benchmarks.schemes_by_kind"
    assert {pair for pair, known in pairs_of_page(text).items() if known} == rule_pairs(), again
    schemes = {scheme for scheme, _ in rule_pairs()}
    assert set(pairs_of_page(text)) == {(scheme, kind) for scheme in schemes for kind in KINDS}, again
    assert cases_of_page(text) == {(case.scheme, case.kind, case.label) for case in CASES}, again


def test_rows_become_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rows.jsonl"
    monkeypatch.setenv("QUANTDISPATCH_SCHEME_RESULTS", str(file))
    errors = {"reference": 0.0, "cpu": 2.4e-3, "bf16": 0.02}
    kernels = {"reference": "reference", "cpu": "cpu/x", "bf16": "cpu/y"}
    Row("w8a16_fp8", "moe", "fp8 channel", None, "w 1", errors, kernels, 0.0).record()
    Row("w8a16_fp8", "moe", "fp8 blocks", PLUGIN, "w 1", errors | {"cpu": 3e-7}, kernels, 0.5).record()
    text = render([json.loads(line) for line in file.read_text().splitlines()])
    assert "| `w8a16_fp8` | moe | fp8 channel | w 1 | 0 | 2e-03, cpu/x | 2e-02, cpu/y |  |" in text
    assert f"| `w8a16_fp8` | moe | fp8 blocks (`{PLUGIN}`) | w 1 | 0 | < 1e-6, cpu/x | 2e-02, cpu/y | 5e-01 |" in text
    assert pairs_of_page(text) == {("w8a16_fp8", kind): kind == "moe" for kind in KINDS}
    assert cases_of_page(text) == {("w8a16_fp8", "moe", "fp8 channel"), ("w8a16_fp8", "moe", "fp8 blocks")}
    assert "| `w8a16_fp8` | no rule | 2e-03 | no rule |" in text
