"""No record claims what its kernel does not compute: layers that only the reference backend may get."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quantdispatch.backends import cpu, reference
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.environment import Environment
from quantdispatch.registry.facts import KernelSpec
from quantdispatch.registry.kernels import BACKEND_RANKS, ordered, select

INSTRUCTIONS = ("isa.avx512_vnni", "isa.avx_vnni", "isa.amx_int8", "isa.avx512_bf16")
FACTS = Environment.detect("cpu", {**dict.fromkeys(INSTRUCTIONS, True), "quantdispatch-native": "1"}).facts
TORCH_FACTS = Environment.detect("cpu", {**dict.fromkeys(INSTRUCTIONS, True), "quantdispatch-native": None}).facts
KERNELS = ordered([*cpu.kernels(), *reference.kernels()], BACKEND_RANKS)


def args(**fields: Any) -> QuantArgs:
    return QuantArgs(**fields)


def fp8(**fields: Any) -> QuantArgs:
    return QuantArgs(type="float", **fields)


INT4 = args(num_bits=4, strategy="group", group_size=32)
INT8 = args(num_bits=8, strategy="channel")
FP8 = fp8(strategy="channel")
TOKEN, STATIC = args(strategy="token", dynamic=True), args(strategy="tensor")
MX = {"strategy": "group", "group_size": 32, "scale_dtype": "uint8"}

NV = {"num_bits": 4, "strategy": "tensor_group", "group_size": 16}

#: (weights, inputs, outputs): none of it is on the CPU backend's list, each next to something that is
OTHERS = {
    "int8 outputs that are dynamic": (INT8, STATIC, args(strategy="tensor", dynamic=True)),
    "int8 inputs of fp8": (FP8, TOKEN, None),
    "int8 outputs of fp8": (FP8, fp8(strategy="tensor"), STATIC),
    "mxfp8 inputs of fp8": (FP8, fp8(**MX, dynamic=True), None),
    "mxfp4 inputs of int4": (INT4, fp8(num_bits=4, **MX, dynamic=True), None),
    "mxfp8 inputs of int4": (INT4, fp8(**MX, dynamic=True), None),
    "nvfp4 inputs of mxfp4": (fp8(num_bits=4, **MX), fp8(**NV, dynamic="local"), None),
    "mxfp4 inputs of nvfp4": (fp8(**NV), fp8(num_bits=4, **MX, dynamic=True), None),
    "fp8 token inputs of mxfp8": (fp8(**MX), fp8(strategy="token", dynamic=True), None),
    "static fp8 inputs of mxfp4": (fp8(num_bits=4, **MX), fp8(strategy="tensor"), None),
    "int8 inputs of mxfp4": (fp8(num_bits=4, **MX), TOKEN, None),
    "outputs of mxfp4": (fp8(num_bits=4, **MX), None, STATIC),
    "fp4 in groups of 64": (fp8(num_bits=4, strategy="group", group_size=64), None, None),
    "fp4 with float scales": (fp8(num_bits=4, strategy="group", group_size=32, scale_dtype="bfloat16"), None, None),
    "nvfp4 in groups of 32": (fp8(num_bits=4, strategy="tensor_group", group_size=32), None, None),
    "fp8 in groups of 32, who knows which scales": (fp8(strategy="group", group_size=32), None, None),
    "fp8 blocks with exponents": (fp8(strategy="block", block_structure=[128, 128], scale_dtype="uint8"), None, None),
    "int8 with exponents": (args(strategy="channel", scale_dtype="uint8"), None, None),
    "asymmetric fp8": (fp8(strategy="channel", symmetric=False), None, None),
    "asymmetric mxfp4": (fp8(num_bits=4, symmetric=False, **MX), None, None),
    "dynamic weights": (args(num_bits=8, strategy="tensor", dynamic=True), None, None),
    "int9": (args(num_bits=9, strategy="channel"), None, None),
    "int1 inputs": (INT8, args(num_bits=1, strategy="token", dynamic=True), None),
    "fp8 outputs": (INT4, None, fp8(strategy="tensor")),
}

#: (scheme, weights, inputs, outputs, first kernel without the native ones): of those that once had none
SERVED = [
    ("wNa16_int", args(num_bits=1, strategy="group", group_size=32), None, None, "cpu/dequant"),
    ("wNa16_int", args(num_bits=4, strategy="block", block_structure=[32, 32]), None, None, "cpu/dequant"),
    ("wNa4_int", INT4, args(num_bits=4, strategy="token", dynamic=True), None, "cpu/int4_torch"),
    ("wNa4_int", INT8, args(num_bits=4, strategy="tensor"), None, "cpu/w8a8_onednn"),
    ("wNa8_int", INT4, args(strategy="group", group_size=32, dynamic=True), None, "cpu/dequant"),
    ("wNa8o8_int", INT8, STATIC, STATIC, "cpu/w8a8_onednn"),
    ("wNa8o8_int", INT4, STATIC, STATIC, "cpu/dequant"),
    ("w4a8_fp8", INT4, fp8(strategy="token", dynamic=True), None, "cpu/int4_torch"),
    ("w8a16_fp8", fp8(strategy="group", group_size=32), None, None, "cpu/dequant"),
    ("w8a8_fp8", fp8(strategy="group", group_size=128), fp8(strategy="token", dynamic=True), None, "cpu/dequant"),
    ("w8a16_mxfp8", fp8(strategy="group", group_size=32), None, None, "cpu/microfloat"),
    ("w8a8_mxfp8", fp8(**MX), fp8(**MX, dynamic=True), None, "cpu/microfloat"),
    ("w4a16_mxfp4", fp8(num_bits=4, strategy="group", group_size=32), None, None, "cpu/microfloat"),
    ("w4a8_mxfp4", fp8(num_bits=4, **MX), fp8(strategy="group", group_size=128, dynamic=True), None, "cpu/microfloat"),
    ("w6a16_mxfp6", fp8(num_bits=6, **MX), None, None, "cpu/microfloat"),
    ("w4a16_nvfp4", fp8(**NV), None, None, "cpu/microfloat"),
    ("w4a4_nvfp4", fp8(**NV), fp8(**NV, dynamic="local"), None, "cpu/microfloat"),
]


@pytest.mark.parametrize(("scheme", "weights", "inputs", "outputs", "first"), SERVED)
def test_what_is_served_by_which_kernel(
    scheme: str, weights: QuantArgs, inputs: QuantArgs | None, outputs: QuantArgs | None, first: str
) -> None:
    codes = inputs is not None and inputs.type == "int" and inputs.strategy in ("token", "tensor")
    for facts, expected in ((TORCH_FACTS, first), (FACTS, "cpu/native_int8" if codes else "cpu/native")):
        choice = select(spec(weights, inputs, outputs, scheme=scheme), facts, KERNELS)
        assert choice.kernel is not None and choice.kernel.name == expected


def spec(weights: QuantArgs | None, inputs: QuantArgs | None, outputs: QuantArgs | None, **changes: Any) -> KernelSpec:
    group = weights and (weights.group_size or (weights.block_structure or (0, 256))[1])
    made = KernelSpec("linear", "linear", "test", weights, inputs, outputs, 128, 256, "bfloat16", group)
    return replace(made, **changes)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", OTHERS)
def test_what_no_kernel_of_the_cpu_computes(name: str, dtype: str) -> None:
    choice = select(spec(*OTHERS[name], dtype=dtype), FACTS, KERNELS)
    assert choice.kernel is not None and choice.kernel.name == "reference"
    # before it is last every other has said no, and why
    assert all(candidate.reasons for candidate in choice.trace if candidate.kernel.name != "reference")


@pytest.mark.parametrize("weights", [INT4, INT8, FP8], ids=lambda args: args.describe())
def test_embeddings_and_caches_are_other_ops(weights: QuantArgs) -> None:
    looked_up = select(spec(weights, None, None, op="embedding", kind="embedding"), FACTS, KERNELS)
    assert looked_up.kernel is not None and looked_up.kernel.name == "reference/embedding"
    cached = spec(None, fp8(strategy="tensor"), None, op="kv_cache", kind="kv_cache", n=None, k=None)
    choice = select(cached, FACTS, KERNELS)
    assert choice.kernel is not None and choice.kernel.name == "reference/kv_cache"
    assert {k.kernel.backend for k in (*looked_up.trace, *choice.trace)} == {"reference"}


@pytest.mark.parametrize("kind", ["linear", "lm_head", "moe"])
@pytest.mark.parametrize("weights", [INT4, INT8, FP8], ids=lambda args: args.describe())
def test_every_matrix_is_computed_whatever_its_kind(weights: QuantArgs, kind: str) -> None:
    choice = select(spec(weights, None, None, kind=kind), FACTS, KERNELS)
    assert choice.kernel is not None and choice.kernel.backend == "cpu"
    other = select(spec(weights, None, None, kind="embedding"), FACTS, KERNELS)
    assert other.kernel is not None and other.kernel.backend == "reference"
