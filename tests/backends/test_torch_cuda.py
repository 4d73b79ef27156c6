"""torch's own products of quantized matrices, by the same ops on the CPU: against float64, there and back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quantdispatch import QuantDispatchError
from quantdispatch.backends.torch_cuda import experts, linear, probes
from quantdispatch.registry.args import QuantArgs


def args(kind: str, strategy: str, **fields: Any) -> QuantArgs:
    return QuantArgs(num_bits=8, type=kind, strategy=strategy, **fields)


FP8_TOKEN = args("float", "token", dynamic=True)
FP8_TENSOR, FP8_STATIC = args("float", "tensor", dynamic=True), args("float", "tensor")
INT_INPUTS = [
    args("int", strategy, dynamic=dynamic, symmetric=symmetric)
    for strategy, dynamic in (("token", True), ("tensor", True), ("tensor", False))
    for symmetric in (True, False)
]
CASES = [
    *((linear.ScaledMm, args("float", "tensor"), seen) for seen in (FP8_TENSOR, FP8_STATIC)),
    *(
        (made, args("float", strategy), seen)
        for made in (linear.ScaledMmRows, linear.ScaledMmAfter)
        for strategy in ("tensor", "channel")
        for seen in (FP8_TOKEN, FP8_TENSOR, FP8_STATIC)
    ),
    *(
        (linear.IntMm, args("int", strategy, symmetric=symmetric), seen)
        for strategy in ("tensor", "channel")
        for symmetric in (True, False)
        for seen in INT_INPUTS
    ),
]


def name(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else value.describe().replace(" ", "-")


@pytest.mark.parametrize(("kernel", "weights", "inputs"), CASES, ids=name)
def test_against_float64(kernel: Any, weights: QuantArgs, inputs: QuantArgs, layers: SimpleNamespace) -> None:
    for seed, dtype in enumerate(("bfloat16",) if kernel is linear.ScaledMmRows else ("bfloat16", "float16")):
        n, k = 48 + 16 * seed, 64 + 32 * seed
        layer = layers.make(weights, inputs, n=n, k=k, dtype=dtype, bias=bool(seed), seed=seed)
        impl = kernel(layer.spec)
        state = impl.pack(layer.operands)
        assert layers.same(impl.unpack(state), layer.operands)
        for rows in (1, 5, 30):
            x = torch.randn(rows, k, generator=torch.Generator().manual_seed(rows)).to(getattr(torch, dtype))
            y = impl.apply(x.unsqueeze(0), state)
            assert y.shape == (1, rows, n) and y.dtype == x.dtype
            assert layers.error(y[0], layer.output(x)) < 4e-3
        assert impl.apply(x[:0], state).shape == (0, n)


def test_outputs_are_quantized_and_input_is_checked(layers: SimpleNamespace) -> None:
    outputs = args("int", "tensor")
    layer = layers.make(args("int", "channel"), INT_INPUTS[0], outputs=outputs, n=32, k=64, dtype="float16")
    impl = linear.IntMm(layer.spec)
    state = impl.pack(layer.operands)
    y = impl.apply(torch.randn(3, 64).half(), state)
    steps = y.double() / layer.operands.output_scale.double()
    assert (steps - steps.round()).abs().max() < 0.07 and y.unique().numel() > 5
    with pytest.raises(QuantDispatchError, match="does not fit the kernel"):
        impl.apply(torch.ones(1, 64), state)


def test_probes_try_the_ops() -> None:
    assert probes.scaled_mm() is None
    assert probes.scaled_mm_after() is None
    assert probes.int_mm() is None


def test_a_wrong_product_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_scaled_mm", lambda *a: torch.zeros(4, 4))
    assert probes.scaled_mm() == "the product of ones is 0 instead of 64"
    monkeypatch.setattr(torch, "_scaled_grouped_mm", lambda *a, **k: torch.zeros(4, 4), raising=False)
    assert probes.grouped_mm() is False


def grouped(q: Tensor, codes: Tensor, scale: Tensor, weight_scale: Tensor, ends: Tensor) -> Tensor:
    """What ``_scaled_grouped_mm`` is documented to give, in float64."""
    out, start = [], 0
    for number, end in enumerate(ends.tolist()):
        part = q[start:end].double() @ codes[number].double().T
        out.append(part * scale[start:end].double().unsqueeze(1) * weight_scale[number].double())
        start = end
    return torch.cat(out).bfloat16()


@given(tokens=st.integers(1, 12), chosen=st.integers(1, 3), parts=st.sampled_from([1, 2]), seed=st.integers(0, 999))
def test_grouped_experts(tokens: int, chosen: int, parts: int, seed: int) -> None:
    from tests.backends.conftest import error, make  # fixtures and examples do not mix

    count, hidden, inner = 4, 32, 48
    generator = torch.Generator().manual_seed(seed)
    made = [
        [make(args("float", "channel"), FP8_TOKEN, n=n, k=k, seed=9 * e + i, kind="moe")
         for i, (n, k) in enumerate([(inner, hidden)] * parts + [(hidden, inner)])]
        for e in range(count)
    ]  # fmt: skip
    bound = [[(impl := linear.ScaledMmRows(layer.spec), impl.pack(layer.operands)) for layer in own] for own in made]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experts, "has_grouped", lambda: True)
        patch.setattr(experts, "grouped", grouped)
        run = linear.ScaledMmRows.fuse([own[:-1] for own in bound], [own[-1] for own in bound], "silu")
        x = torch.randn(tokens, hidden, generator=generator).bfloat16()
        index = torch.randint(0, count + 1, (tokens, chosen), generator=generator)
        weights = torch.rand(tokens, chosen, generator=generator)
        y = run(x, index, weights)
    exact = torch.zeros(tokens, hidden, dtype=torch.float64)
    for token in range(tokens):
        for number, weight in zip(index[token].tolist(), weights[token].double(), strict=True):
            if number < count:
                *first, last = made[number]
                seen = [layer.output(x[token : token + 1]).bfloat16() for layer in first]
                inside = torch.nn.functional.silu(seen[0]) * (seen[1] if parts == 2 else 1)
                exact[token] += weight * last.output(inside)[0]
    assert (y.double() - exact).abs().max() == 0 or error(y, exact) < 3e-2


def test_no_grouped_product_here(layers: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts, "has_grouped", lambda: False)
    layer = layers.make(args("float", "channel"), FP8_TOKEN, n=32, k=32)
    bound = (linear.ScaledMmRows(layer.spec), linear.ScaledMmRows(layer.spec).pack(layer.operands))
    assert linear.ScaledMmRows.fuse([[bound]], [bound], "silu") is None
