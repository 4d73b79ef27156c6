"""Where engines silently compute something else: our logits are the decompressed model's, and theirs would not pass."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="models are transformers models")
pytest.importorskip("compressed_tensors", reason="checkpoints are written by compressed-tensors")

from engine_faults import FAULTS, Fault, changed, write  # noqa: E402
from expected_logits import expected_logits  # noqa: E402
from scheme_cases import IDS  # noqa: E402

import quantdispatch as qd  # noqa: E402
from quantdispatch.testing import registry_with, using_registry  # noqa: E402

ROOT = Path(__file__).parents[2]
#: relative norms: what the order of fp32 sums makes of it, and, where such a sum falls on the other side of a step of
#: the activations, of what quantizing them does at all
EXACT, ROUNDING = 5e-6, 0.02
#: an engine's logits are at least so many tolerances off
NOTICED = 5


@cache
def _with(plugin: str) -> Any:
    sys.path.insert(0, str(ROOT / "plugins" / plugin / "src"))
    return registry_with(plugin.replace("-", "_"))


def distance(ours: torch.Tensor, truth: torch.Tensor) -> float:
    return float((ours.double() - truth.double()).norm() / truth.double().norm())


@torch.no_grad()
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_numbers(fault: Fault, tmp_path: Path) -> None:
    folder = write(fault, tmp_path / "written")
    truth = expected_logits(folder, IDS)
    assert truth.isfinite().all() and float(truth.std()) > 0.5
    tolerance = EXACT + ROUNDING * distance(expected_logits(folder, IDS, activations=False), truth)
    if fault.wrong is not None:
        theirs = expected_logits(changed(folder, fault.wrong, tmp_path / "engine"), IDS)
        assert distance(theirs, truth) > NOTICED * tolerance, "what the engine computes would pass"
    with using_registry(_with(fault.plugin)) if fault.plugin else nullcontext():
        for backend in ("reference", None):
            model = qd.load(folder, dtype=torch.float32, backend=backend)
            assert distance(model(IDS).logits, truth) < tolerance, backend


def test_ids_are_given_once() -> None:
    assert len({fault.id for fault in FAULTS}) == len(FAULTS)
