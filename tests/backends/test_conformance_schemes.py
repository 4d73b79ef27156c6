"""The built-in schemes, held against the conformance kit: every rule, every format, every kind of layer."""

from __future__ import annotations

from quantdispatch.registry.rules import builtin_rules
from quantdispatch.testing import SchemeConformance

INT = {"blocks", "experts", "g-idx", "zero-points"}
INPUTS = {"dynamic-inputs", "static-inputs"}


class Scheme(SchemeConformance):
    most_layers = 16
    most_samples = 2


class TestDense(Scheme):
    rules = ("dense",)
    capabilities = {"dense", "embedding", "experts"}


class TestIntegerWeights(Scheme):
    rules = ("wNa16_int", "wNa16_int-unpacked")
    capabilities = INT | {"embedding"}
    most_layers = 40


class TestIntegerInputs(Scheme):
    rules = ("wNa8_int", "wNa8_int-packed", "wNa4_int")
    capabilities = INT | INPUTS


class TestIntegerOutputs(Scheme):
    rules = ("wNa8o8_int",)
    capabilities = INT | {"static-inputs", "quantized-outputs"}


class TestInt4Float8(Scheme):
    rules = ("w4a8_fp8",)
    capabilities = INT | INPUTS


class TestFloat8(Scheme):
    rules = ("w8a8_fp8", "w8a8_fp8-block", "w8a8_fp8-group")
    capabilities = {"float-weights", "experts", "blocks"} | INPUTS


class TestFloat8Weights(Scheme):
    rules = ("w8a16_fp8",)
    capabilities = {"float-weights", "experts", "blocks", "embedding"}


class TestMicrofloats(Scheme):
    rules = ("w4a4_nvfp4", "w4a4_mxfp4", "w4a8_mxfp4", "w6a8_mxfp6", "w8a8_mxfp8")
    capabilities = {"float-weights", "experts", "dynamic-inputs"}


class TestMicrofloatWeights(Scheme):
    rules = ("w4a16_nvfp4", "w4a16_mxfp4", "w6a16_mxfp6", "w8a16_mxfp8")
    capabilities = {"float-weights", "experts", "embedding"}


class TestCache(Scheme):
    rules = ("kv_fp8",)
    capabilities = {"cache"}


def test_every_built_in_rule_is_under_test() -> None:
    classes = [value for name, value in globals().items() if name.startswith("Test")]
    tested = [name for kind in classes for name in kind.rules]
    assert sorted(tested) == sorted(rule.name for rule in builtin_rules())
