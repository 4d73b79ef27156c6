"""Layers that a checkpoint leaves dense: the same parameters, the same numbers, another product."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from quantdispatch.engines.dense import DenseLinear, dense_kernel, quicken, restore

pytestmark = pytest.mark.skipif(
    dense_kernel(torch.bfloat16) is None,
    reason="no kernel for dense layers here: not built, or a processor without AVX2",
)


def quickened(n: int, k: int, bias: bool, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(k, n, bias=bias, dtype=torch.bfloat16)).requires_grad_(False)
    quicken(model)
    assert type(model[0]) is DenseLinear
    return model


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 70), st.integers(64, 200), st.integers(1, 1200), st.booleans(), st.integers(0, 9))
def test_error_is_that_of_rounding_the_result(m, n, k, bias, seed):
    model = quickened(n, k, bias, seed)
    x = torch.randn(m, k, generator=torch.Generator().manual_seed(seed)).bfloat16()
    exact = F.linear(x.double(), model[0].weight.double(), model[0].bias.double() if bias else None)
    # half a unit in the last of 8 bits, and what sums in fp32 lose
    size = x.double().abs() @ model[0].weight.double().abs().T
    assert bool(((model(x).double() - exact).abs() <= exact.abs() * 2**-8 + size * 2**-20).all())


@pytest.mark.parametrize("shape", [(64,), (3, 64), (2, 5, 64), (2, 0, 64)])
def test_any_leading_dimensions_and_strides(shape):
    model = quickened(80, 64, True)
    x = torch.randn(shape).bfloat16()
    assert model(x).shape == (*shape[:-1], 80)
    torch.testing.assert_close(
        model(x).float(), F.linear(x.float(), *map(torch.Tensor.float, model.parameters())), rtol=1e-2, atol=1e-2
    )
    strided = torch.randn(4, 128).bfloat16()[:, ::2]
    assert torch.equal(model(strided), model(strided.contiguous()))


def test_threads_do_not_change_a_bit():
    model = quickened(200, 300, True)
    x = torch.randn(7, 300).bfloat16()
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(model(x))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)


def test_nan_and_infinity_go_through():
    model = quickened(64, 32, False)
    x = torch.zeros(2, 32).bfloat16()
    x[0, 3], x[1, 4] = float("nan"), float("inf")
    y = model(x)
    assert y[0].isnan().all() and y[1].isinf().any()


def test_what_it_is_not_for_is_torchs():
    model = quickened(64, 32, True)
    weight, bias = model[0].weight, model[0].bias
    x = torch.randn(3, 32, requires_grad=True).bfloat16()
    assert model(x).requires_grad
    assert torch.equal(
        model.double()(torch.ones(1, 32).double()), F.linear(torch.ones(1, 32).double(), weight.double(), bias.double())
    )
    with pytest.raises(RuntimeError):
        model(torch.ones(1, 32))


def test_what_does_not_fit_is_torchs():
    model = quickened(64, 32, True)
    x = torch.randn(3, 32).bfloat16()
    expected = model(x)
    torch.testing.assert_close(
        model(torch._neg_view(x)).float(), -expected.float() + 2 * model[0].bias.float(), rtol=0.05, atol=0.05
    )
    model[0].bias = nn.Parameter(torch.ones(1).bfloat16(), requires_grad=False)
    assert torch.equal(model(x), F.linear(x, model[0].weight, model[0].bias))
    model[0].bias = nn.Parameter(torch.ones(64).bfloat16())
    model(x).sum().backward()
    assert torch.equal(model[0].bias.grad, torch.full((64,), 3.0).bfloat16())


@pytest.mark.parametrize("record", ["jit", "fx"])
def test_recorders_see_the_product(record):
    model = quickened(64, 32, True)
    x, other = torch.randn(3, 32).bfloat16(), torch.randn(3, 32).bfloat16()
    if record == "jit":
        recorded = torch.jit.trace(model, x)
    else:
        from torch.fx.experimental.proxy_tensor import make_fx

        recorded = make_fx(model)(x)
    assert torch.equal(recorded(other), model(other))


def test_copies_pickles_and_way_back():
    model = quickened(64, 32, True)
    x = torch.randn(3, 32).bfloat16()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(other[0]) is DenseLinear and torch.equal(other(x), model(x))
    assert list(model.state_dict()) == ["0.weight", "0.bias"]
    restore(model)
    assert type(model[0]) is nn.Linear and "_dense" not in vars(model[0])
    torch.testing.assert_close(model(x), quickened(64, 32, True)(x))


def test_compiles_to_one_graph():
    model = quickened(64, 32, True)
    x = torch.randn(3, 32).bfloat16()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), model(x))


def test_small_and_foreign_layers_are_left_alone():
    class Own(nn.Linear):
        pass

    model = nn.ModuleList([nn.Linear(8, 4).bfloat16(), Own(64, 64).bfloat16(), nn.Linear(64, 64)])
    quicken(model)
    assert [type(module) for module in model] == [nn.Linear, Own, nn.Linear]
