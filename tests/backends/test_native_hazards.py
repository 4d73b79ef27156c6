"""What goes by addresses must notice when memory is another."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from usual_kernels import NATIVE

from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.facts import KernelSpec
from quantdispatch.registry.lazy import load_target
from quantdispatch.registry.operands import Operands

pytestmark = pytest.mark.skipif(not NATIVE, reason="the native kernels were not built")

N, K, G = 16, 64, 32
TOKEN = QuantArgs(strategy="token", dynamic=True)
TARGETS = {
    "native": ("quantdispatch.backends.cpu.native.linear:NativeLinear", None),
    "native_int8": ("quantdispatch.backends.cpu.native.int8:NativeInt8Linear", TOKEN),
}


def layer(which: str):
    target, inputs = TARGETS[which]
    args = QuantArgs(num_bits=4, group_size=G, symmetric=False)
    spec = KernelSpec("linear", "linear", "test", args, inputs, None, N, K, "float32", G)
    return load_target(target)(replace(spec))


def operands(seed: int, zero: int) -> Operands:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(-8, 8, (N, K), generator=generator, dtype=torch.int8)
    scale = torch.rand(N, K // G, generator=generator) + 0.5
    return Operands(codes, scale, zero_point=torch.full((N, K // G), zero, dtype=torch.int8))


@pytest.mark.parametrize("which", TARGETS)
def test_zero_points_of_another_width_at_the_same_address(which):
    """Those beyond four bits take a byte; memory of one layer may become another's."""
    impl, x = layer(which), torch.ones(2, K)
    nibbles, whole = impl.pack(operands(1, 3)), impl.pack(operands(2, 8))
    assert nibbles["zero"].numel() * 2 == whole["zero"].numel()
    room = torch.empty(whole["zero"].numel(), dtype=torch.uint8)
    packed = torch.empty_like(whole["packed"])
    scale = torch.empty_like(whole["scale"])
    for state, plain in ((nibbles, operands(1, 3)), (whole, operands(2, 8)), (nibbles, operands(1, 3))):
        packed.copy_(state["packed"]), scale.copy_(state["scale"])
        zero = room[: state["zero"].numel()].view(state["zero"].shape)
        zero.copy_(state["zero"])
        y = impl.apply(x, {**state, "packed": packed, "scale": scale, "zero": zero})
        weight = (plain.codes.float() - plain.zero_point.repeat_interleave(G, 1)) * plain.scale.repeat_interleave(G, 1)
        torch.testing.assert_close(y, x @ weight.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("which", TARGETS)
def test_signs_that_are_not_in_memory(which):
    impl, x = layer(which), torch.randn(3, K)
    state = impl.pack(operands(3, 1))
    assert torch.equal(impl.apply(torch._neg_view(x), state), impl.apply(-x, state))


@pytest.mark.parametrize("which", TARGETS)
def test_recorders_see_the_product(which):
    impl = layer(which)
    state = impl.pack(operands(4, 1))
    recorded = torch.jit.trace(lambda x: impl.apply(x, state), torch.ones(2, K), check_trace=False)
    x = torch.randn(2, K)
    assert torch.equal(recorded(x), impl.apply(x, state))
