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
FACTS = Environment.detect("cpu", dict.fromkeys(INSTRUCTIONS, True)).facts
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

#: (weights, inputs, outputs): none of it is on the CPU backend's list, each next to something that is
OTHERS = {
    "single bits": (args(num_bits=1, strategy="channel"), None, None),
    "single bits in groups": (args(num_bits=1, strategy="group", group_size=32), None, None),
    "single bits, int8 inputs": (args(num_bits=1, strategy="channel"), TOKEN, None),
    "integer blocks": (args(num_bits=4, strategy="block", block_structure=[32, 32]), None, None),
    "int8 blocks, int8 inputs": (args(num_bits=8, strategy="block", block_structure=[128, 128]), TOKEN, None),
    "int4 inputs": (INT4, args(num_bits=4, strategy="token", dynamic=True), None),
    "static int4 inputs": (INT8, args(num_bits=4, strategy="tensor"), None),
    "int4 inputs in groups": (INT4, args(num_bits=4, strategy="group", group_size=32, dynamic=True), None),
    "int8 inputs in groups": (INT8, args(strategy="group", group_size=32, dynamic=True), None),
    "int8 inputs in groups of int4": (INT4, args(strategy="group", group_size=32, dynamic=True), None),
    "int8 outputs": (INT8, STATIC, STATIC),
    "int8 outputs of int4": (INT4, STATIC, STATIC),
    "int8 outputs alone": (INT8, None, STATIC),
    "fp8 inputs of int4": (INT4, fp8(strategy="token", dynamic=True), None),
    "static fp8 inputs of int8": (INT8, fp8(strategy="tensor"), None),
    "int8 inputs of fp8": (FP8, TOKEN, None),
    "fp8 groups": (fp8(strategy="group", group_size=64), None, None),
    "fp8 groups, fp8 inputs": (fp8(strategy="group", group_size=128), fp8(strategy="token", dynamic=True), None),
    "mxfp8": (fp8(**MX), None, None),
    "mxfp8, mxfp8 inputs": (fp8(**MX), fp8(**MX, dynamic=True), None),
    "fp8, mxfp8 inputs": (FP8, fp8(**MX, dynamic=True), None),
    "fp8 blocks with exponents": (fp8(strategy="block", block_structure=[128, 128], scale_dtype="uint8"), None, None),
    "int8 with exponents": (args(strategy="channel", scale_dtype="uint8"), None, None),
    "mxfp4": (fp8(num_bits=4, **MX), None, None),
    "mxfp6": (fp8(num_bits=6, **MX), None, None),
    "nvfp4": (fp8(num_bits=4, strategy="tensor_group", group_size=16), None, None),
    "asymmetric fp8": (fp8(strategy="channel", symmetric=False), None, None),
    "dynamic weights": (args(num_bits=8, strategy="tensor", dynamic=True), None, None),
    "fp8 outputs": (INT4, None, fp8(strategy="tensor")),
}


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
