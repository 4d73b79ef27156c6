"""Layers whose inputs are quantized in a kernel, in the interpreter against float64, over random layers."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from quantdispatch.backends.triton.activations_layer import QuantizedLinear
from quantdispatch.backends.triton.compat import INTERPRETED
from quantdispatch.registry.args import QuantArgs

#: of a relative norm: 16-bit results, and sums in another order
LIMITS = {"float16": 1e-3, "bfloat16": 4e-3}
#: random layers of each form
CASES = 200


def _int(bits: int, strategy: str, **more: Any) -> QuantArgs:
    return QuantArgs(type="int", num_bits=bits, strategy=strategy, **more)


def _float(bits: int, strategy: str, **more: Any) -> QuantArgs:
    return QuantArgs(type="float", num_bits=bits, strategy=strategy, **more)


def _weights(random_: random.Random, kind: str) -> QuantArgs:
    strategy = random_.choice(("tensor", "channel", "group", "group", "block"))
    fields: dict[str, Any] = {}
    if strategy == "group":
        fields["group_size"] = random_.choice((32, 64))
    if strategy == "block":
        fields["block_structure"] = [random_.choice((16, 24)), random_.choice((32, 64))]
    if kind == "fp8":
        return _float(8, strategy, **fields)
    bits = random_.choice((2, 3, 4, 4, 5, 8, 8))
    return _int(bits, strategy, symmetric=random_.random() < 0.5, **fields)


def _int8(random_: random.Random) -> tuple[QuantArgs, QuantArgs]:
    strategy = random_.choice(("token", "token", "tensor", "static", "group"))
    symmetric = random_.random() < 0.6
    bits = random_.choice((8, 8, 8, 4))
    if strategy == "static":
        inputs = _int(bits, "tensor", dynamic=False, symmetric=symmetric)
    elif strategy == "group":
        inputs = _int(bits, "group", dynamic=True, symmetric=True, group_size=32)
    else:
        inputs = _int(bits, strategy, dynamic=True, symmetric=symmetric)
    return _weights(random_, "int"), inputs


def _fp8(random_: random.Random) -> tuple[QuantArgs, QuantArgs]:
    strategy = random_.choice(("token", "tensor", "static", "group"))
    if strategy == "group":
        inputs = _float(8, "group", dynamic=True, group_size=random_.choice((32, 64)))
    else:
        inputs = _float(8, "tensor" if strategy == "static" else strategy, dynamic=strategy != "static")
    return _weights(random_, random_.choice(("fp8", "fp8", "int"))), inputs


def _small(random_: random.Random) -> tuple[QuantArgs, QuantArgs]:
    if random_.random() < 0.3:
        nv = {"group_size": 16}
        return _float(4, "tensor_group", **nv), _float(4, "tensor_group", dynamic="local", **nv)
    mx: dict[str, Any] = {"group_size": 32, "scale_dtype": "uint8"}
    bits = random_.choice((4, 6, 8))
    return _float(bits, "group", **mx), _float(random_.choice((4, 8)), "group", dynamic=True, **mx)


FORMS = {"int8": _int8, "fp8": _fp8, "small groups": _small}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(CASES))
def test_layers_are_exact_but_for_rounding(form: str, seed: int, layers: Any) -> None:
    assert INTERPRETED
    random_ = random.Random(f"{form} {seed}")
    weights, inputs = FORMS[form](random_)
    dtype = random_.choice(("float16", "bfloat16"))
    units = [args.group_size or 1 for args in (weights, inputs)]
    unit = max(units)
    k = unit * random_.randint(1, max(1, 128 // unit)) if unit > 1 else random_.randint(1, 140)
    m, n = random_.choice((1, 1, 2, 3, 17)), random_.randint(1, 70)
    layer = layers.make(weights, inputs, n=n, k=k, dtype=dtype, bias=random_.random() < 0.5, seed=seed)
    impl = QuantizedLinear(layer.spec)
    state = impl.pack(layer.operands)
    assert layers.same(impl.unpack(state), layer.operands)
    x = torch.randn(m, k, generator=torch.Generator().manual_seed(seed)).to(getattr(torch, dtype))
    y = impl.apply(x, state)
    exact = layer.output(x)
    assert y.dtype == x.dtype and y.shape == (m, n)
    # what cancels in a sum leaves the rounding of its parts
    scale = (layer.inputs(x).abs() @ layer.weight().abs().T).norm() / exact.norm().clamp(min=1e-30)
    assert layers.error(y, exact) < LIMITS[dtype] * max(1.0, scale.item() / 16)


def test_torch_compile_sees_one_operator(layers: Any) -> None:
    inputs = _int(8, "token", dynamic=True)
    layer = layers.make(_int(4, "group", group_size=32), inputs, n=24, k=64, dtype="float16", bias=True)
    impl = QuantizedLinear(layer.spec)
    state = impl.pack(layer.operands)
    graphs = []

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph

    compiled = torch.compile(lambda x: impl.apply(x, state), fullgraph=True, backend=count, dynamic=True)
    for m in (1, 3):
        x = torch.randn(m, 64).half()
        assert torch.equal(compiled(x), impl.apply(x, state))
    assert all("quantdispatch_triton.quantized_linear.default" in names for names in graphs)


def test_a_nan_code_makes_its_output_nan_and_no_other(layers: Any) -> None:
    """Where codes are decoded; the interpreter's own float8 has no NaN."""
    layer = layers.make(_float(8, "channel"), None, n=20, k=48, dtype="float16", kind="moe")
    layer.operands.codes.view(torch.uint8)[7, 11] = 0xFF
    impl = QuantizedLinear(layer.spec)
    y = impl.apply(torch.randn(2, 48).half(), impl.pack(layer.operands))
    assert y[:, 7].isnan().all() and int(y.isnan().sum()) == 2


@pytest.mark.parametrize("form", ["int8", "fp8"])
def test_offsets_do_not_wrap_at_two_to_the_31(form: str, layers: Any) -> None:
    """The last token of an x whose rows lie far apart is past 2^31 elements; memory that nothing touches costs none."""
    weights, inputs = (_int(8, "channel"), _int(8, "token", dynamic=True)) if form == "int8" else (
        _float(8, "channel"), _float(8, "token", dynamic=True)
    )  # fmt: skip
    layer = layers.make(weights, inputs, n=16, k=32, dtype="float16")
    impl = QuantizedLinear(layer.spec)
    stride = 2**31 // 2 + 64
    x = torch.empty(2 * stride + 32, dtype=torch.float16).as_strided((3, 32), (stride, 1))
    x.copy_(torch.randn(3, 32))
    assert layers.error(impl.apply(x, impl.pack(layer.operands)), layer.output(x)) < 1e-3
