"""Faults in memory, in manners and of fused experts: each is found by the check for it, which says what is wrong;
nothing that a kernel does ends the run."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
import seeded_faults as seeded
import seeded_more as more

from quantdispatch.testing import BackendConformance, run_conformance
from quantdispatch.testing.conformance import Report

FAULTS = [
    value
    for value in vars(more).values()
    if isinstance(value, type) and issubclass(value, seeded.Sound) and value is not seeded.Sound
]


def record(kernel: type, **wider: Any) -> Any:
    made = seeded.record(kernel, **wider)
    return made.__class__(made.name, op=made.op, requires=made.requires, target=f"{more.__name__}:{kernel.__name__}")


ALL = tuple(map(record, FAULTS))
FLOAT8 = {"type": "float", "num_bits": 8, "symmetric": True}


@cache
def report_of(kernel: type) -> Report:
    float8 = kernel is more.NanCodesLost
    experts = issubclass(kernel, more.SoundExperts)

    class Seeded(BackendConformance):
        plugins = (record(kernel, **FLOAT8),) if float8 else ALL
        backend = kernel.__name__
        capabilities = (
            seeded.CAPABILITIES
            | {"repeatable"}
            | ({"fused-experts"} if experts else set())
            | ({"float-weights"} if float8 else set())
        ) - ({"zero-points", "dynamic-inputs"} if float8 else set())
        most_layers = 12

    return run_conformance(Seeded)


TABLE = [
    (more.BiasTwice, "numerics/output", "the bias is added twice"),
    (more.BiasTwice, "numerics/bias", "it is another"),
    (more.TailGroup, "numerics/output", "the last group takes the scale of the one before it"),
    (more.InputScaleIgnored, "numerics/output", "the scale of the inputs is ignored"),
    (more.NanInputsLost, "numerics/rows", "what went wrong before is hidden"),
    (more.NanCodesLost, "numerics/nan-codes", "required NaN"),
    (more.RowsMixed, "numerics/rows", "beside a row that is not a number"),
    (more.NarrowSums, "numerics/range", "too small a type"),
    (more.FlatRows, "numerics/leading-dimensions", "required torch."),
    (more.ChangesState, "lifecycle/unchanged", "scale"),
    (more.KeepsInputs, "lifecycle/lets-go", "the input of a call that is over is still held"),
    (more.OneResult, "lifecycle/results", "the memory of results is used again"),
    (more.View, "lifecycle/storage", "is it a view?"),
    (more.Unwritten, "numerics/written", "nobody has written"),
    (more.RaisesStrangely, "numerics/output", "raises: Strange: its text cannot be had, ValueError"),
    (more.EndsTheProcess, "numerics/output", "raises: SystemExit: tired"),
    (more.GivesNone, "numerics/output", "apply gives NoneType, required a tensor"),
    (more.GivesPair, "numerics/output", "apply gives tuple, required a tensor"),
    (more.PacksNone, "numerics/output", "pack gives NoneType, required a dict"),
    (more.PacksNumbers, "lifecycle/unpack", "pack gives 'bits': int"),
    (more.UnpacksDict, "lifecycle/unpack", "unpack gives dict, required Operands"),
    (more.NotPickled, "lifecycle/copies", "what is unpickled, with a saved state cannot be made"),
    (more.ExpertsReversed, "numerics/experts", "the experts are in reverse order"),
    (more.GateAndUpExchanged, "numerics/experts", "the gate and what it gates are exchanged"),
    (more.ExpertsWeightsIgnored, "numerics/experts", "the experts' weights are ignored"),
    (more.ExpertsWide, "numerics/experts", "experts give torch.float32"),
    (more.ExpertsElsewhereTaken, "numerics/experts", "lives elsewhere is taken for one that is here"),
    (more.FusesAnything, "lifecycle/unlike-experts", "an activation that it cannot know"),
    (more.FusesIntoNumber, "numerics/experts", "fuse gives int, required a function or None"),
    (more.ChangesRouting, "lifecycle/experts", "what it is given is changed: weights"),
]


@pytest.mark.parametrize(("kernel", "check", "words"), TABLE, ids=lambda value: getattr(value, "__name__", None))
def test_a_fault(kernel: type, check: str, words: str) -> None:
    report = report_of(kernel)
    assert any(r.item.check.name == check and words in r.message for r in report.failures), str(report)


def test_experts_that_are_right_pass() -> None:
    report = report_of(more.SoundExperts)
    assert report.passed, str(report)
    assert any(r.item.check.name == "numerics/experts" and r.outcome == "passed" for r in report.results)


def test_every_fault_is_tried() -> None:
    assert {kernel for kernel, _, _ in TABLE} == set(FAULTS) - {more.SoundExperts}


@pytest.mark.parametrize("kernel", [more.NotPickled, more.TailGroup, more.FusesIntoNumber, more.InputScaleIgnored])
def test_messages_are_words(kernel: type) -> None:
    """Whatever a kernel does, a failure is said in words, and no error comes from the kit's own code."""
    for result in report_of(kernel).failures:
        assert result.message and "Traceback" not in result.message
        assert not re.search(r"\((trial|diagnosis|truth|backend|kernel_\w+)\.py:", result.message), str(result)
