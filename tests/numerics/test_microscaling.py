"""Activations and weights in microscaling formats against compressed-tensors' own functions, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantdispatch.numerics.microscaling import (
    dequantize_groups,
    fake_quantize,
    is_mx,
    is_nvfp4,
    mx_scale,
    quantize_mx,
    quantize_nvfp4,
)
from quantdispatch.registry.args import QuantArgs

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
FIELDS: dict[str, Any] = {"type": "float", "symmetric": True}
NVFP4 = QuantArgs(
    num_bits=4, strategy="tensor_group", group_size=16, dynamic="local", scale_dtype="float8_e4m3fn", **FIELDS
)
MXFP4 = QuantArgs(num_bits=4, strategy="group", group_size=32, dynamic=True, scale_dtype="uint8", **FIELDS)
MXFP8 = QuantArgs(num_bits=8, strategy="group", group_size=32, dynamic=True, scale_dtype="uint8", **FIELDS)
EVERY = pytest.mark.parametrize("args", [NVFP4, MXFP4, MXFP8], ids=["nvfp4", "mxfp4", "mxfp8"])


def theirs(x: torch.Tensor, args: QuantArgs, global_scale: torch.Tensor | None = None) -> torch.Tensor:
    """compressed-tensors' fake-quantization of a layer's inputs."""
    pytest.importorskip("compressed_tensors", reason="activations are compared with its fake-quantization")
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp

    foreign = QuantizationArgs(**args.to_json())
    scale, zero_point = compute_dynamic_scales_and_zp(x, foreign, torch.nn.Module(), global_scale=global_scale)
    result: torch.Tensor = fake_quantize(x, scale, zero_point, foreign, global_scale=global_scale)
    return result


def same_bits(ours: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal in dtype, shape and every bit; a NaN equals a NaN."""
    assert ours.dtype == expected.dtype and ours.shape == expected.shape
    assert torch.equal(ours.isnan(), expected.isnan())
    numbers = ~expected.isnan()
    assert torch.equal(ours[numbers], expected[numbers])
    assert torch.equal(ours[numbers].signbit(), expected[numbers].signbit())


def overall(x: torch.Tensor) -> torch.Tensor:
    """A calibrated global scale: the largest value maps to the largest code at the largest scale."""
    return (448.0 * 6.0 / x.float().abs().amax().clamp(min=1e-30)).clamp(max=1e30).reshape(1)


def sample(seed: int, rows: int, k: int, dtype: torch.dtype, spread: float) -> torch.Tensor:
    """Values over many magnitudes, with zeros, a zero group and exact ties among them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, k, generator=generator) * torch.exp2(torch.randn(rows, k // 16, generator=generator) * spread
                                                               ).repeat_interleave(16, dim=1)  # fmt: skip
    x[torch.rand(rows, k, generator=generator) < 0.05] = 0.0
    x[torch.rand(rows, k, generator=generator) < 0.02] = -0.0
    ties = torch.randint(-24, 25, (rows, k), generator=generator) / 4
    x = torch.where(torch.rand(rows, k, generator=generator) < 0.2, ties, x)
    x[0, :32] = 0.0
    return x.clamp(-6e4, 6e4).to(dtype)


@EVERY
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 6),
    groups=st.integers(1, 8),
    dtype=st.sampled_from(DTYPES),
    spread=st.sampled_from([0.0, 2.0, 8.0, 40.0]),
    factor=st.sampled_from([1.0, 0.01, 300.0]),
)
def test_random_inputs(
    args: QuantArgs, seed: int, rows: int, groups: int, dtype: torch.dtype, spread: float, factor: float
) -> None:
    x = sample(seed, rows, groups * 32, dtype, spread)
    scale = overall(x) * factor if args is NVFP4 else None
    same_bits(fake_quantize(x, args, scale), theirs(x, args, scale))


@EVERY
@pytest.mark.parametrize("dtype", DTYPES)
def test_thousands_of_groups(args: QuantArgs, dtype: torch.dtype) -> None:
    x = sample(7, 256, 1024, dtype, 12.0)
    scale = overall(x) if args is NVFP4 else None
    same_bits(fake_quantize(x, args, scale), theirs(x, args, scale))


@EVERY
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_value_of_16_bits(args: QuantArgs, dtype: torch.dtype) -> None:
    """Each on its own at the top of a group: every exponent, every rounding of it, denormals, infinities, NaN."""
    top = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    x = torch.zeros(top.numel(), 32, dtype=dtype)
    x[:, 3] = top
    x[:, 4] = top * 0.3
    x[:, 5] = -top * 0.04
    scale = torch.tensor([37.5]) if args is NVFP4 else None
    found = fake_quantize(x, args, scale)
    number = ~top.isnan()
    same_bits(found[number], theirs(x, args, scale)[number])
    # Theirs depends on the bits of the NaN, which differ with the size of the tensor: the group may become zero.
    assert found[~number].view(-1, 32 if args is not NVFP4 else 16)[:: 1 if args is not NVFP4 else 2].isnan().all()


@EVERY
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_stays_in_its_group(args: QuantArgs, dtype: torch.dtype, bad: float) -> None:
    x = sample(3, 2, 64, dtype, 1.0)
    x[1, 40] = bad
    scale = torch.tensor([100.0]) if args is NVFP4 else None
    found = fake_quantize(x, args, scale)
    if args is NVFP4 or bad == bad:
        same_bits(found, theirs(x, args, scale))
    size = 16 if args is NVFP4 else 32
    group = slice(40 // size * size, 40 // size * size + size)
    if args is NVFP4 and bad in (torch.inf, -torch.inf):
        assert float(found[1, 40]) == pytest.approx(6 * 448 / 100.0 * (1 if bad > 0 else -1), rel=1e-2)
    else:
        assert found[1, group].isnan().all()
    outside = torch.ones(64, dtype=torch.bool)
    outside[group] = False
    assert found[0].isfinite().all() and found[1, outside].isfinite().all()


@EVERY
@pytest.mark.parametrize("shape", [(32,), (1, 32), (2, 3, 64), (0, 32), (2, 0, 96)])
def test_any_rank(args: QuantArgs, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(5)).to(torch.bfloat16)
    scale = torch.tensor([50.0]) if args is NVFP4 else None
    found = fake_quantize(x, args, scale)
    assert found.shape == x.shape and found.dtype == x.dtype
    if x.numel() and x.ndim > 1:
        same_bits(found, theirs(x, args, scale))
    rows = [fake_quantize(row, args, scale) for row in x.reshape(-1, x.shape[-1])]
    assert not rows or torch.equal(torch.stack(rows).reshape(shape), found)


@EVERY
def test_views_and_float64(args: QuantArgs) -> None:
    x = sample(9, 64, 32, torch.float32, 3.0)
    scale = overall(x) if args is NVFP4 else None
    same_bits(fake_quantize(x.t().contiguous().t(), args, scale), fake_quantize(x, args, scale))
    same_bits(fake_quantize(x.double(), args, scale), theirs(x.double(), args, scale))


def test_codes_and_scales_are_the_values() -> None:
    """What a kernel is given says the same as the dequantized values."""
    x = sample(11, 8, 64, torch.float32, 4.0)
    codes, exponent = quantize_mx(x, 4)
    assert codes.dtype == torch.float8_e4m3fn and exponent.dtype == torch.uint8 and exponent.shape == (8, 2)
    values = codes.float() * mx_scale(exponent).repeat_interleave(32, dim=1)
    assert torch.equal(values, fake_quantize(x, MXFP4))
    scale = overall(x)
    codes, local = quantize_nvfp4(x, scale)
    assert codes.dtype == local.dtype == torch.float8_e4m3fn and local.shape == (8, 4)
    values = codes.float() * (local.float() / scale).repeat_interleave(16, dim=1)
    assert torch.equal(values, fake_quantize(x, NVFP4, scale))


def test_mx_errors_are_bounded_by_the_group() -> None:
    """An independent bound: at most half a step of the largest code, saturation included (7/8 of a power of two)."""
    x = sample(13, 200, 64, torch.float32, 6.0)
    for args, largest, step in ((MXFP4, 6.0, 2.0), (MXFP8, 448.0, 32.0)):
        found = fake_quantize(x, args)
        top = x.reshape(200, 2, 32).abs().amax(-1, keepdim=True)
        error = (found - x).reshape(200, 2, 32).abs()
        # in units of the scale the top is below 7 (fp4), or 448 and a bit where fp8 saturates at 448
        assert (error <= top * max(step / 2 / (largest / 1.75), 0.125) + 1e-30).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_every_exponent(dtype: torch.dtype) -> None:
    found = mx_scale(torch.arange(256, dtype=torch.uint8), dtype)
    assert found.dtype == dtype and found[255].isnan()
    assert found[:255].tolist() == [2.0 ** (exponent - 127) for exponent in range(255)]


def _args(**fields: Any) -> QuantArgs:
    return QuantArgs(**{"num_bits": 8, "type": "float", "strategy": "group", "dynamic": True, **fields})


@pytest.mark.parametrize(
    ("args", "mx", "nvfp4"),
    [
        (MXFP4, True, False),
        (MXFP8, True, False),
        (NVFP4, False, True),
        (_args(num_bits=4, group_size=32), True, False),
        (_args(group_size=32), False, False),
        (_args(group_size=128), False, False),
        (_args(strategy="token"), False, False),
    ],
)
def test_what_the_args_say(args: QuantArgs, mx: bool, nvfp4: bool) -> None:
    assert is_mx(args) is mx and is_nvfp4(args) is nvfp4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fake_quantize(torch.zeros(2, 32), NVFP4), "global scale"),
        (lambda: fake_quantize(torch.zeros(2, 40), MXFP4), "40 columns"),
        (lambda: fake_quantize(torch.zeros(2, 24), NVFP4, torch.ones(1)), "24 columns"),
        (lambda: fake_quantize(torch.zeros(2, 32), _args(group_size=32)), "not args of mx"),
        (lambda: fake_quantize(torch.zeros(2, 32, dtype=torch.int32), MXFP8), "int32"),
    ],
)
def test_what_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_weights_in_a_wider_dtype_are_exact() -> None:
    generator = torch.Generator().manual_seed(17)
    codes = (torch.randint(-12, 13, (4, 64), generator=generator) / 2).to(torch.float8_e4m3fn)
    exponent = torch.randint(100, 140, (4, 2), generator=generator, dtype=torch.uint8)
    exact = codes.double() * torch.exp2(exponent.double() - 127).repeat_interleave(32, dim=1)
    assert torch.equal(dequantize_groups(codes, exponent, dtype=torch.float64), exact)
    assert torch.equal(dequantize_groups(codes, exponent).double(), exact)
    local = (torch.rand(4, 4, generator=generator) * 400 + 1).to(torch.float8_e4m3fn)
    scale = torch.tensor([812.3])
    wide = codes.double() * (local.double() / scale.double()).repeat_interleave(16, dim=1)
    assert torch.equal(dequantize_groups(codes, local, scale, dtype=torch.float64), wide)
    rounded = dequantize_groups(codes, local, scale)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.double(), wide, rtol=2**-8, atol=0)
