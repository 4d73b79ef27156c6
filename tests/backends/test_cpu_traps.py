"""The traps of torch's CPU ops (docs/cpu-backend.md) cannot be reached."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from quantdispatch.backends.cpu import u8s8
from quantdispatch.backends.cpu.probes import u8s8_7bit, u8s8_8bit

SWEEP = """
import sys
import torch
from quantdispatch.backends.cpu import kernels
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.environment import Environment
from quantdispatch.registry.facts import KernelSpec
from quantdispatch.registry.kernels import run_probe
from quantdispatch.registry.lazy import load_target
from quantdispatch.registry.operands import Operands

facts = Environment.detect("cpu").facts
token = QuantArgs(strategy="token", dynamic=True)
count = 0
for k in (*range(1, 20), 31, 32, 33, 47, 48, 63, 64, 65):
    for n in (1, 16, 17):
        for bits, inputs in ((8, None), (8, token), (4, None), (4, token)):
            weights = QuantArgs(num_bits=bits, group_size=-1)
            spec = KernelSpec("linear", "linear", "test", weights, inputs, None, n, k, "bfloat16", k)
            half = 1 << (bits - 1)
            codes = torch.randint(-half, half, (n, k), dtype=torch.int8)
            operands = Operands(codes, torch.rand(n, 1).bfloat16() + 0.5)
            for kernel in kernels():
                if kernel.op != "linear" or kernel.predicate.test({**spec.flat, **facts}).status != "yes":
                    continue
                if kernel.probe and run_probe(kernel.probe):
                    continue
                impl = load_target(kernel.target)(spec)
                state = impl.pack(operands)
                for m in (1, 3, 4, 5, 9):
                    y = impl.apply(torch.randn(m, k).bfloat16(), state)
                    assert y.shape == (m, n) and y.isfinite().all(), (kernel.name, k, n, m)
                    count += 1
print(count)
"""


def test_no_size_ends_the_process():
    """torch's int8 op ends the process for bf16 and K % 16 != 0; a crash would show as the exit code."""
    done = subprocess.run([sys.executable, "-c", SWEEP], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 2000


@pytest.mark.parametrize(("probe", "low", "high"), [(u8s8_7bit, -64, 63), (u8s8_8bit, -128, 127)])
def test_a_passing_probe_means_exact_sums(probe, low, high):
    if probe() is not None:
        pytest.skip(f"the product does not work here: {probe()}")
    generator = torch.Generator().manual_seed(0)
    for m, n, k in ((1, 33, 70), (9, 48, 576), (64, 17, 1000)):
        for x_choice, w_choice in (((-128, 127), (low, high)), ((127,), (low,)), ((-128,), (high,))):
            pick = lambda values, shape: torch.tensor(values)[torch.randint(len(values), shape, generator=generator)]  # noqa: E731
            x, codes = pick(x_choice, (m, k)), pick(w_choice, (n, k))
            y = u8s8.u8s8_mm(x.float(), codes.to(torch.int8))
            assert torch.equal(y.double(), x.double() @ codes.double().T)


def test_saturation_is_seen():
    """The 8-bit probe must agree with a direct look at the op."""
    y = u8s8.u8s8_mm(torch.full((1, 64), 127.0), torch.full((16, 64), 127, dtype=torch.int8))
    assert (u8s8_8bit() is None) <= bool((y == 127 * 127 * 64).all())


def test_prepacked_copies_follow_their_weights(monkeypatch):
    x = torch.ones(8, 64)
    codes = torch.randint(-64, 64, (16, 64), dtype=torch.int8)
    before = len(u8s8._packed)
    first = u8s8.u8s8_mm(x, codes)
    assert len(u8s8._packed) == before + 1
    codes.mul_(-1).clamp_(-64, 63)
    assert torch.allclose(u8s8.u8s8_mm(x, codes), codes.sum(-1).float().expand(8, -1)), "stale after writing in place"
    assert not torch.equal(first, u8s8.u8s8_mm(x, codes))
    del codes
    assert len(u8s8._packed) == before, "the copy outlives its weight"
    monkeypatch.setattr(u8s8, "PREPACK_LIMIT", 0)
    codes = torch.ones(16, 64, dtype=torch.int8)
    assert (u8s8.u8s8_mm(x, codes) == 64).all() and len(u8s8._packed) == before
