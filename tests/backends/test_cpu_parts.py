"""The parts under the kernels: bit planes, float8 decoding, activation quantization, int4 layout, scratch memory."""

from __future__ import annotations

import itertools
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantdispatch.backends.cpu import activations, bitplanes, float8, int4_layout, scratch
from quantdispatch.numerics import activations as truth
from quantdispatch.registry.args import QuantArgs


@settings(deadline=None, max_examples=60)
@given(bits=st.integers(2, 8), n=st.integers(1, 9), k=st.integers(1, 70), seed=st.integers(0, 99))
def test_bit_planes_come_back_and_are_dense(bits, n, k, seed):
    half = 1 << (bits - 1)
    codes = torch.randint(-half, half, (n, k), dtype=torch.int8, generator=torch.Generator().manual_seed(seed))
    packed = bitplanes.pack_planes(codes, bits)
    assert packed.shape == (n, bitplanes.packed_bytes(k, bits))
    assert packed.numel() * 8 <= n * (k + 7) * bits
    assert torch.equal(bitplanes.codes_of(packed, bits, k), codes)


def test_every_float8_code():
    codes = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(torch.float8_e4m3fn)
    assert torch.equal(float8.fp8_to_float(codes), codes.float()) or torch.allclose(
        float8.fp8_to_float(codes), codes.float(), rtol=0, atol=0, equal_nan=True
    )
    bits = codes.view(torch.int8)
    assert torch.equal(float8.is_nan(bits), codes.float().isnan())
    for dtype in (torch.float32, torch.bfloat16):
        out = torch.empty(256, dtype=dtype)
        float8.decode_fp8(bits, torch.empty(256, dtype=torch.int16), out)
        finite = ~float8.is_nan(bits)
        assert torch.equal(out[finite].float() * float8.FP8_SCALE, codes.float()[finite])
        assert torch.equal(out[finite].signbit(), codes.float()[finite].signbit())


INT = [
    QuantArgs(strategy=s, dynamic=d, symmetric=y)
    for s, d, y in itertools.product(("token", "tensor"), (True, False), (True, False))
    if d or s == "tensor"
]
FLOAT = [
    QuantArgs(type="float", strategy="token", dynamic=True),
    QuantArgs(type="float", strategy="tensor", dynamic=True),
    QuantArgs(type="float", strategy="tensor"),
    QuantArgs(type="float", strategy="group", group_size=128, dynamic=True),
]


def samples(k):
    generator = torch.Generator().manual_seed(k)
    for m in (1, 5, 40):
        x = torch.randn(m, k, generator=generator)
        for scale in (1.0, 1e-3, 300.0):
            yield (x * scale).bfloat16()
        yield x.half()
        yield (x.abs() + 1).float()
        yield torch.zeros(m, k)
        yield torch.full((m, k), 1e-42)
        # halves and the ends of the range: where rounding could differ
        yield ((torch.arange(m * k) % 511 - 255) / 2).view(m, k).bfloat16()


@pytest.mark.parametrize("args", INT, ids=QuantArgs.describe)
@pytest.mark.parametrize("k", [64, 200])
def test_int_codes_equal_the_numerics(args, k):
    scale = None if args.dynamic else torch.tensor([0.5])
    zero = None if args.dynamic or args.symmetric else torch.tensor([-9], dtype=torch.int8)
    for x in samples(k):
        q, s, z = activations.quantize_int(x, args, scale, zero)
        true_q, true_s, true_z = truth.quantize_int(x, args, scale, zero)
        assert torch.equal(q, true_q.float()) and torch.equal(s, true_s)
        assert (z is None) == (true_z is None) and (z is None or torch.equal(z, true_z.float()))


@pytest.mark.parametrize("args", FLOAT, ids=QuantArgs.describe)
@pytest.mark.parametrize("k", [64, 200, 256])
def test_float8_values_equal_the_numerics(args, k):
    scale = None if args.dynamic else torch.tensor([0.5])
    for x in samples(k):
        q, s = activations.quantize_fp8(x, args, scale)
        true_q, true_s = truth.quantize_fp8(x, args, scale)
        if args.strategy == "group":
            assert s is None
            assert torch.equal(q, true_q.float() * truth.expand_groups(true_s, 128, k))
        else:
            assert torch.equal(q, true_q.float()) and torch.equal(s, true_s)


def test_nan_and_infinity_are_not_numbers_afterwards():
    token = QuantArgs(strategy="token", dynamic=True)
    for bad in (torch.nan, torch.inf, -torch.inf):
        x = torch.ones(2, 64)
        x[0, 3] = bad
        q, s, _ = activations.quantize_int(x, token, None, None)
        assert not (q * s)[0].isfinite().any() and (q * s)[1].isfinite().all()


@pytest.mark.parametrize(("n", "k"), [(16, 32), (48, 64), (80, 96), (128, 160), (176, 32)])
def test_int4_layout_comes_back_both_ways(n, k, monkeypatch):
    values = torch.randint(0, 16, (n, k), dtype=torch.uint8)
    packed = int4_layout.pack(values)
    assert torch.equal(int4_layout.unpack(packed), values)
    assert torch.equal(int4_layout.unpack_by_op(packed), values)
    monkeypatch.setattr(int4_layout, "block_size", lambda: None)
    assert torch.equal(int4_layout.unpack(packed), values)


def test_scratch_is_reused_and_each_threads_own():
    first = scratch.scratch("test", (4, 4), torch.float32)
    again = scratch.scratch("test", (2, 3), torch.float32)
    assert first.data_ptr() == again.data_ptr() and again.shape == (2, 3)
    assert scratch.scratch("test", (2, 3), torch.bfloat16).data_ptr() != first.data_ptr()
    seen = []
    thread = threading.Thread(target=lambda: seen.append(scratch.scratch("test", (4, 4), torch.float32)))
    thread.start()
    thread.join()
    assert seen[0].data_ptr() != first.data_ptr()
