"""Each fault that is seeded into a kernel, a record, a scheme or a rule is found by the kit, which names it."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import seeded_faults as seeded
from torch import Tensor

from quantdispatch.registry.operands import Operands
from quantdispatch.testing import BackendConformance, Layer, SchemeConformance, run_conformance
from quantdispatch.testing.conformance import Report
from quantdispatch.testing.conformance.written import written


def all_of(base: type) -> list[type]:
    """``base`` and each class that has a fault of its own."""
    return [value for value in vars(seeded).values() if isinstance(value, type) and issubclass(value, base)]


#: in one registry each, which takes longer to build than a kernel to check
ALL_KERNELS = tuple(map(seeded.record, all_of(seeded.Sound)))
ALL_RULES = tuple(map(seeded.rule, all_of(seeded.SoundNumerics)))


def of_kernel(kernel: type, more: set[str] | None = None, **wider: Any) -> Report:
    class Seeded(BackendConformance):
        plugins = (seeded.record(kernel, **wider),) if wider else ALL_KERNELS
        backend = kernel.__name__
        capabilities = seeded.CAPABILITIES | {"repeatable"} | (more or set())
        most_layers = 16

    return run_conformance(Seeded)


def of_scheme(numerics: type, **wider: Any) -> Report:
    class Seeded(SchemeConformance):
        plugins = (seeded.rule(numerics, **wider),) if wider else ALL_RULES
        rules = (numerics.__name__,)
        capabilities = {"zero-points"}
        most_layers = 16

        def written(self, layer: Layer, operands: Operands) -> dict[str, Tensor]:
            return written(layer.with_(format="pack-quantized"), operands) or {}

    return run_conformance(Seeded)


def found(report: Report, check: str, words: str) -> bool:
    """Does a failure of ``check`` say ``words``?"""
    return any(r.item.check.name == check and words in r.message for r in report.failures)


@cache
def sound() -> tuple[Report, Report]:
    return of_kernel(seeded.Sound), of_scheme(seeded.SoundNumerics)


def test_what_is_right_passes() -> None:
    for report in sound():
        assert report.passed, str(report)


KERNELS = [
    (seeded.ZeroPointAxis, "numerics/output", "zero points are taken along the wrong axis"),
    (seeded.SwappedNibble, "numerics/output", "the order of nibbles"),
    (seeded.ScaleTransposed, "numerics/output", "scales are transposed"),
    (seeded.BiasDropped, "numerics/output", "the bias is dropped"),
    (seeded.BiasDropped, "numerics/bias", "the bias is dropped"),
    (seeded.SignsLost, "numerics/output", "codes are read without their offset"),
    (seeded.RoundsUp, "numerics/rounding", "ties go up"),
    (seeded.Truncates, "numerics/rounding", "not rounded half to even"),
    (seeded.ResultCut, "numerics/unbiased", "rounded in one direction"),
    (seeded.OutputTransposed, "numerics/output", "the output is transposed"),
    (seeded.OtherShape, "numerics/output", "it is transposed"),
    (seeded.OutputWide, "numerics/output", "required torch.bfloat16"),
    (seeded.SharedState, "lifecycle/independent", "state is shared between layers"),
    (seeded.HoldsTensors, "load/binds", "holds tensors: scratch"),
    (seeded.LossyUnpack, "lifecycle/unpack", "scale is torch.float16"),
    (seeded.ForgetsStrangers, "lifecycle/unpack", "extra.stranger is lost"),
    (seeded.ChangesInput, "lifecycle/unchanged", "the input x"),
    (seeded.TakesGradients, "lifecycle/no-gradient", "gradient"),
    (seeded.OnlyRows, "numerics/shapes", "not contiguous"),
    (seeded.Unsteady, "lifecycle/repeatable", "different bits"),
]


@pytest.mark.parametrize(("kernel", "check", "words"), KERNELS, ids=lambda value: getattr(value, "__name__", None))
def test_a_fault_in_a_kernel(kernel: type, check: str, words: str) -> None:
    report = of_kernel(kernel)
    assert found(report, check, words), str(report)


SCHEMES = [
    (seeded.CodesSwapped, "numerics/known-answer", "the order of nibbles"),
    (seeded.ZerosTurned, "numerics/known-answer", "zero points are taken along the wrong axis"),
    (seeded.ScalesTurned, "numerics/known-answer", "scales are transposed"),
    (seeded.NoBias, "numerics/forward", "the bias is dropped"),
    (seeded.ZerosForgotten, "numerics/weight", "zero points are ignored"),
    (seeded.AnyScale, "load/values", "weight_scale holds nan, and is taken"),
    (seeded.LastLayer, "lifecycle/independent", "state is shared between layers"),
    (seeded.StoresOtherwise, "numerics/stored", "weight_scale is torch.float32"),
]


@pytest.mark.parametrize(("numerics", "check", "words"), SCHEMES, ids=lambda value: getattr(value, "__name__", None))
def test_a_fault_in_a_scheme(numerics: type, check: str, words: str) -> None:
    report = of_scheme(numerics)
    assert found(report, check, words), str(report)


def test_every_fault_is_tried() -> None:
    assert {kernel for kernel, _, _ in KERNELS} == set(all_of(seeded.Sound)) - {seeded.Sound}
    assert {numerics for numerics, _, _ in SCHEMES} == set(all_of(seeded.SoundNumerics)) - {seeded.SoundNumerics}


@pytest.mark.parametrize(
    ("wider", "capability", "check", "words"),
    [
        ({"actorder": "any"}, "g-idx", "numerics/output", "g_idx is ignored"),
        ({"strategy": {"channel", "group", "block"}}, "blocks", "numerics/output", "the output differs"),
    ],
)
def test_a_requirement_too_wide(wider: dict[str, Any], capability: str, check: str, words: str) -> None:
    report = of_kernel(seeded.Sound, **wider)
    assert found(report, "table/capabilities", f"{capability!r} is not among its capabilities"), str(report)
    # and where it is claimed too, the results show it
    report = of_kernel(seeded.Sound, {capability}, **wider)
    assert found(report, check, words), str(report)


def test_a_predicate_too_wide() -> None:
    report = of_scheme(seeded.SoundNumerics, strategy={"channel", "group", "block"})
    assert found(report, "table/capabilities", "'blocks' is not among its capabilities"), str(report)


def test_a_requirement_too_narrow() -> None:
    report = of_kernel(seeded.Sound, symmetric=True)
    assert found(report, "table/capabilities", "'zero-points' is declared, and nothing admits"), str(report)
