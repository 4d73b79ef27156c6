"""Inputs that layers share are quantized once, and no write to one of them goes unseen."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from quantdispatch.backends.cpu import shared_inputs
from quantdispatch.registry.args import QuantArgs

K = 48
TOKEN = QuantArgs(strategy="token", dynamic=True)
TENSOR = QuantArgs(strategy="tensor", dynamic=True)


def fresh(rows: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randn(1, rows, K, generator=torch.Generator().manual_seed(seed)).bfloat16()


def same(left: tuple[torch.Tensor, ...], right: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def in_inference_mode(x: torch.Tensor) -> None:
    with torch.inference_mode():
        x.neg_().view(-1)[0].fill_(7)


WRITES: dict[str, Any] = {
    "in place": lambda x: x.neg_().add_(1),
    "by a view": lambda x: x.view(-1)[3:].fill_(2),
    "detached": lambda x: x.detach().neg_(),
    "data": lambda x: x.data.neg_(),
    "data replaced": lambda x: setattr(x, "data", fresh(seed=1)),
    "numpy": lambda x: x.view(torch.int16).numpy().fill(16256),
    "dlpack": lambda x: torch.from_dlpack(x).neg_(),
    "storage": lambda x: x.untyped_storage().copy_(fresh(seed=1).untyped_storage()),
    "swapped": lambda x: torch.utils.swap_tensors(x, fresh(seed=1)),
    "inference mode": in_inference_mode,
}


@pytest.mark.parametrize("mode", [nullcontext, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("write", WRITES)
def test_every_write_is_seen(write: str, mode: Any) -> None:
    with mode():
        x = fresh()
        before = shared_inputs.quantize_shared(x, TOKEN)
        WRITES[write](x)
        after = shared_inputs.quantize_shared(x, TOKEN)
    assert same(after, shared_inputs._quantize(x, TOKEN)) and not same(before, after)


@pytest.mark.parametrize("mode", [nullcontext, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("rows", [1, 3])
def test_the_same_input_is_quantized_once_by_each_args(rows: int, mode: Any) -> None:
    with mode():
        x = fresh(rows)
        first = shared_inputs.quantize_shared(x, TOKEN)
        assert shared_inputs.quantize_shared(x, TOKEN)[0] is first[0]
        other = shared_inputs.quantize_shared(x, TENSOR)
        assert other[0] is not first[0] and same(other, shared_inputs._quantize(x, TENSOR))


def test_an_input_is_not_kept_alive() -> None:
    x = fresh()
    shared_inputs.quantize_shared(x, TOKEN)
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None


def test_vmap_over_inputs() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        shared_inputs.quantize_shared(x, TOKEN)
        return shared_inputs.quantize_shared(x, TOKEN)[0]

    rows = fresh(4).view(4, 1, 1, K)
    expected = torch.stack([shared_inputs._quantize(row, TOKEN)[0] for row in rows])
    assert torch.equal(torch.func.vmap(twice)(rows), expected)
