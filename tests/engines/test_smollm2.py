"""A real language model in each format of the vertical slice computes what its scheme says."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="loading a model needs the package transformers")

import quantdispatch  # noqa: E402
from benchmarks import agreement  # noqa: E402
from quantdispatch.engines.generate import resident_bytes  # noqa: E402

pytestmark = pytest.mark.model
VARIANTS = ("w4a16-asym", "w4a16-sym", "w8a8-int8", "fp8-dynamic")
#: relative root mean square of logits; the README says what it is made of
TOLERANCE = {"w4a16-asym": 0.04, "w4a16-sym": 0.04, "w8a8-int8": 0.16, "fp8-dynamic": 0.16}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_over_200_tokens(smollm2: Callable[[str], Path], variant: str) -> None:
    folder = str(smollm2(variant))
    model = quantdispatch.load(folder)
    assert resident_bytes(model) <= {"w4a16-asym": 125e6, "w4a16-sym": 125e6}.get(variant, 170e6)
    ours = agreement.score(model, folder)
    reference = quantdispatch.load(folder, backend="reference")
    truth = agreement.score(reference, folder)
    # products of int8 are exact, so that an error may be none: these are other kernels all the same
    assert all("reference" not in (layer.backend or "") for layer in model.quantdispatch_plan.layers.values())
    assert {layer.backend for layer in reference.quantdispatch_plan.layers.values() if layer.weights} == {"reference"}
    assert agreement.relative_error(ours, truth) < TOLERANCE[variant]
    # no further off than the reference is from itself, when its embeddings are off by a rounding
    yardstick = agreement.relative_error(agreement.disturbed(reference, folder), truth)
    assert agreement.relative_error(ours, truth) < 1.25 * yardstick
    del model, reference
    gc.collect()
    if variant.startswith("w4a16"):
        dense = agreement.score(agreement.decompressed(folder), folder)
        assert agreement.relative_error(ours, dense) < TOLERANCE[variant]
        assert agreement.same_choice(ours, dense) > 0.9
