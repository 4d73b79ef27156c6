"""All experts of a layer in Marlin's MoE op: against float64, for every provider's signature and kind of weight."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import marlin_providers
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quantdispatch.backends.marlin import linear, moe, providers, routing
from quantdispatch.registry.args import QuantArgs

INT4 = QuantArgs(num_bits=4, type="int", strategy="group", group_size=32)
KINDS = {
    "int4": INT4,
    "int4 asym": INT4.model_copy(update={"symmetric": False}),
    "int8 channel": QuantArgs(num_bits=8, type="int", strategy="channel"),
    "fp8": QuantArgs(num_bits=8, type="float", strategy="channel"),
    "nvfp4": QuantArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16),
    "mxfp4": QuantArgs(num_bits=4, type="float", strategy="group", group_size=32),
}
EXPERTS, HIDDEN, INNER = 5, 96, 64
ACTIVATE = {"silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu}


@pytest.fixture(params=marlin_providers.PROVIDERS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    adapter = marlin_providers.made(request.param)
    for module in (linear, moe, providers):
        monkeypatch.setattr(module, "adapter", lambda name: adapter)
    return linear.SglangMarlinLinear if request.param == "sglang" else linear.VllmMarlinLinear


def experts(layers: Any, kernel: Any, args: QuantArgs, parts: int, bias: bool = False) -> tuple[list[Any], list[Any]]:
    """Of each expert its layers, and each bound with its state."""
    made, bound = [], []
    for number in range(EXPERTS):
        shapes = [(INNER, HIDDEN)] * parts + [(HIDDEN, INNER)]
        own = [
            layers.make(args, n=n, k=k, seed=10 * number + i, kind="moe", bias=bias) for i, (n, k) in enumerate(shapes)
        ]
        impls = [kernel(layer.spec) for layer in own]
        made.append(own)
        bound.append([(impl, impl.pack(layer.operands)) for impl, layer in zip(impls, own, strict=True)])
    return made, bound


def truth(made: list[Any], x: Tensor, index: Tensor, weights: Tensor, activation: str) -> Tensor:
    total = torch.zeros(x.shape, dtype=torch.float64)
    for token in range(x.shape[0]):
        for number, weight in zip(index[token].tolist(), weights[token].double(), strict=True):
            if not 0 <= number < EXPERTS:
                continue
            *first, last = made[number]
            parts = [layer.output(x[token : token + 1]) for layer in first]
            hidden = ACTIVATE[activation](parts[0]) * (parts[1] if len(parts) == 2 else 1)
            total[token] += weight * last.output(hidden)[0]
    return total


@pytest.mark.parametrize("kind", KINDS)
def test_against_float64(kernel: Any, layers: SimpleNamespace, kind: str) -> None:
    for parts, activation, bias in ((2, "silu", False), (1, "gelu", True)):
        made, bound = experts(layers, kernel, KINDS[kind], parts, bias)
        run = kernel.fuse([own[:-1] for own in bound], [own[-1] for own in bound], activation)
        assert run is not None
        for tokens in (1, 7):
            generator = torch.Generator().manual_seed(tokens)
            x = torch.randn(tokens, HIDDEN, generator=generator).bfloat16()
            index = torch.randint(0, EXPERTS + 1, (tokens, 2), generator=generator)  # EXPERTS lives elsewhere
            weights = torch.rand(tokens, 2, generator=generator)
            y = run(x, index, weights)
            assert y.shape == x.shape and y.dtype == x.dtype
            assert layers.error(y, truth(made, x, index, weights, activation)) < 8e-3
        assert run(x[:0], index[:0], weights[:0]).shape == (0, HIDDEN)


def test_weights_are_held_once(kernel: Any, layers: SimpleNamespace) -> None:
    made, bound = experts(layers, kernel, INT4, 2)
    before = [state["codes"].clone() for own in bound for _, state in own]
    run = kernel.fuse([own[:-1] for own in bound], [own[-1] for own in bound], "silu")
    after = [state["codes"] for own in bound for _, state in own]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    held = {stack.weight.codes.untyped_storage().data_ptr() for stack in (*run._first, run._last)}
    assert {tensor.untyped_storage().data_ptr() for tensor in after} == held and len(held) == 3
    for layer, (impl, state) in zip(made[1], bound[1], strict=True):
        assert layers.same(impl.unpack(state), layer.operands)


def test_what_cannot_be_computed_together(kernel: Any, layers: SimpleNamespace) -> None:
    _, bound = experts(layers, kernel, INT4, 2)
    first, last = [own[:-1] for own in bound], [own[-1] for own in bound]
    assert kernel.fuse(first, last, "swish of its own") is None
    assert kernel.fuse([], [], "silu") is None
    _, other = experts(layers, kernel, KINDS["int8 channel"], 2)
    assert kernel.fuse([*first[:-1], other[-1][:-1]], last, "silu") is None
    ordered = QuantArgs(num_bits=4, type="int", strategy="group", group_size=32, actorder="group")
    _, sorted_ = experts(layers, kernel, ordered, 2)
    assert kernel.fuse([own[:-1] for own in sorted_], [own[-1] for own in sorted_], "silu") is None


@given(tokens=st.integers(1, 40), chosen=st.integers(1, 4), count=st.integers(4, 20), seed=st.integers(0, 2**20))
def test_every_row_has_one_place_in_a_block_of_its_expert(tokens: int, chosen: int, count: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(0, count + 1, (tokens, chosen), generator=generator)
    weights = torch.rand(tokens, chosen, generator=generator)
    made = routing.route(index, weights, count)
    rows, used = made.rows.tolist(), int(made.used)
    assert used <= len(rows) and used % made.block == 0
    places = {row: place for place, row in enumerate(rows[:used]) if row < tokens * chosen}
    assert sorted(places) == list(range(tokens * chosen))
    for row, place in places.items():
        owner = int(index.reshape(-1)[row])
        assert int(made.experts[place // made.block]) == (owner if owner < count else 0)
    assert torch.equal(made.weights == 0, (index == count) | (weights == 0))


@pytest.mark.parametrize(("rows", "count", "block"), [(2, 8, 8), (8, 1, 16), (160, 8, 32), (4096, 8, 64)])
def test_larger_blocks_for_more_rows(rows: int, count: int, block: int) -> None:
    assert routing.block_rows(rows, count) == block
