"""The weight-only kernels in the interpreter against float64, over random layers. Run by test_triton_interpreted."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from quantdispatch.backends.triton.compat import INTERPRETED
from quantdispatch.backends.triton.config import Config
from quantdispatch.backends.triton.wna16 import WNA16Linear
from quantdispatch.backends.triton.wna16_product import forced
from quantdispatch.registry.args import QuantArgs

#: of a relative norm: rounding of 16-bit results, of weights rounded to 16 bits too (dense), of values read from bf16
LIMITS = {"float16": 6e-4, "bfloat16": 4e-3}
CASES = 210


def weights(random_: random.Random) -> QuantArgs:
    """Of any form that the record admits."""
    kind = random_.choice(("int", "int", "int", "fp8", "mx", "nvfp4"))
    if kind == "nvfp4":
        return QuantArgs(type="float", num_bits=4, strategy="tensor_group", group_size=16)
    if kind == "mx":
        return QuantArgs(
            type="float", num_bits=random_.choice((4, 6, 8)), strategy="group", group_size=32, scale_dtype="uint8"
        )
    fields: dict[str, Any] = {"strategy": random_.choice(("tensor", "channel", "group", "group", "block"))}
    if fields["strategy"] == "group":
        fields["group_size"] = random_.choice((8, 16, 20, 32, 48, 64))
    if fields["strategy"] == "block":
        fields["block_structure"] = [random_.choice((16, 24)), random_.choice((16, 24, 32))]
    if kind == "fp8":
        return QuantArgs(type="float", num_bits=8, **fields)
    if fields["strategy"] == "group" and random_.random() < 0.4:
        fields["actorder"] = "group"
    bits = random_.choice((1, 2, 3, 4, 4, 4, 5, 6, 7, 8, 8))
    return QuantArgs(type="int", num_bits=bits, symmetric=random_.random() < 0.5, **fields)


@pytest.mark.parametrize("seed", range(CASES))
def test_products_are_exact_but_for_rounding(seed: int, layers: Any) -> None:
    assert INTERPRETED
    random_ = random.Random(seed)
    args = weights(random_)
    unit = args.group_size or 0
    k = unit * random_.randint(1, max(1, 96 // unit)) if unit else random_.randint(1, 130)
    n, m = random_.randint(1, 64), random_.choice((1, 1, 1, 2, 7, 16, 17))
    dtype = random_.choice(("float16", "float16", "bfloat16"))
    layer = layers.make(
        args, n=n, k=k, dtype=dtype, bias=random_.random() < 0.5, seed=seed,
        scale_dtype=random_.choice((torch.bfloat16, torch.float16, torch.float32)),
    )  # fmt: skip
    impl = WNA16Linear(layer.spec)
    state = impl.pack(layer.operands)
    assert layers.same(impl.unpack(state), layer.operands)
    x = torch.randn(m, k, generator=torch.Generator().manual_seed(seed)).to(getattr(torch, dtype))
    exact = layer.output(x)
    block_m = 16
    for config in (Config(block_m, 64, random_.choice((1, 1, 2, 3))), Config(16, 64, dense=True)):
        with forced(config):
            y = impl.apply(x, state)
        assert y.dtype == x.dtype and y.shape == (m, n)
        # an element of few terms may cancel: then its size says nothing
        scale = (layer.inputs(x).abs() @ layer.weight().abs().T).norm() / exact.norm().clamp(min=1e-30)
        limit = LIMITS[dtype] * max(1.0, scale.item() / 16) * (2 if config.dense else 1)
        assert layers.error(y, exact) < limit, (args.describe(), config)


def test_without_a_forced_config_the_default_serves_any_number_of_tokens(layers: Any) -> None:
    layer = layers.make(QuantArgs(num_bits=4, strategy="group", group_size=32), n=40, k=96, dtype="float16")
    impl = WNA16Linear(layer.spec)
    state = impl.pack(layer.operands)
    for shape in ((96,), (3, 96), (2, 5, 96), (0, 96), (1040, 96)):
        x = torch.randn(shape).half()
        y = impl.apply(x, state)
        assert y.shape == (*shape[:-1], 40)
        assert not x.numel() or layers.error(y, layer.output(x)) < 2e-3


def test_inputs_need_not_be_contiguous(layers: Any) -> None:
    layer = layers.make(QuantArgs(num_bits=8, strategy="channel"), n=24, k=64, dtype="float16")
    impl = WNA16Linear(layer.spec)
    state = impl.pack(layer.operands)
    wide = torch.randn(5, 128).half()
    for x in (wide[:, ::2], wide[:, 64:], torch.randn(64, 5).half().t()):
        assert layers.error(impl.apply(x, state), layer.output(x)) < 1e-3


def test_a_nan_code_makes_its_output_nan_and_no_other(layers: Any) -> None:
    layer = layers.make(QuantArgs(type="float", num_bits=8, strategy="channel"), n=20, k=48, dtype="float16")
    layer.operands.codes.view(torch.uint8)[7, 11] = 0xFF
    impl = WNA16Linear(layer.spec)
    y = impl.apply(torch.randn(2, 48).half(), impl.pack(layer.operands))
    assert y[:, 7].isnan().all() and int(y.isnan().sum()) == 2


def test_torch_compile_sees_one_operator(layers: Any) -> None:
    layer = layers.make(QuantArgs(num_bits=4, strategy="group", group_size=32), n=24, k=64, dtype="float16", bias=True)
    impl = WNA16Linear(layer.spec)
    state = impl.pack(layer.operands)
    graphs = []

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph

    compiled = torch.compile(lambda x: impl.apply(x, state), fullgraph=True, backend=count, dynamic=True)
    for m in (1, 3):
        x = torch.randn(m, 64).half()
        assert torch.equal(compiled(x), impl.apply(x, state))
    assert all("quantdispatch_triton.wna16_mm.default" in names for names in graphs)


def test_offsets_do_not_wrap_at_two_to_the_31(layers: Any) -> None:
    """The last token of an x whose rows lie far apart is past 2^31 elements; memory that nothing touches costs none."""
    layer = layers.make(QuantArgs(num_bits=4, strategy="group", group_size=32), n=16, k=32, dtype="float16")
    impl = WNA16Linear(layer.spec)
    stride = 2**31 // 2 + 64
    x = torch.empty(2 * stride + 32, dtype=torch.float16).as_strided((3, 32), (stride, 1))
    x.copy_(torch.randn(3, 32))
    assert layers.error(impl.apply(x, impl.pack(layer.operands)), layer.output(x)) < 1e-3
