"""Activation quantization against the formulas of docs/schemes.md, recomputed in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantdispatch.numerics.activations import (
    expand_groups,
    quantize_fp8,
    quantize_int,
    quantize_outputs,
    seen_inputs,
)
from quantdispatch.registry.args import QuantArgs

SHAPES = [(1, 64), (5, 33), (2, 3, 48), (7,), (0, 16)]
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
TINY = torch.finfo(torch.float32).tiny


def int8(**fields: object) -> QuantArgs:
    return QuantArgs(**{"num_bits": 8, "type": "int", **fields})  # type: ignore[arg-type]


def fp8(**fields: object) -> QuantArgs:
    return QuantArgs(**{"num_bits": 8, "type": "float", **fields})  # type: ignore[arg-type]


def sample(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + sum(shape))) * 3
    if x.ndim > 1 and x.shape[0] > 1:
        x[0] = 0  # a row of padding
        x[1] += 4  # a row on one side of zero
    return x.to(dtype)


def rows(x: torch.Tensor, strategy: str) -> torch.Tensor:
    """What shares a scale, as rows, in float64."""
    return x.double().reshape(-1, x.shape[-1]) if strategy == "token" else x.double().reshape(1, -1)


def same_but_for_ties(q: torch.Tensor, exact: torch.Tensor, low: int, high: int) -> None:
    """q is the exact quotient rounded and clamped; fp32 may fall on the other side only next to a half."""
    expected = exact.clamp(low, high)
    assert ((q.double() - expected).abs() <= 0.5 + 1e-4).all()
    clear = (expected - expected.floor() - 0.5).abs() > 1e-4
    assert torch.equal(q.double()[clear], expected.round()[clear])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("strategy", ["token", "tensor"])
@pytest.mark.parametrize("bits", [4, 8])
def test_dynamic_symmetric_int(strategy: str, shape: tuple[int, ...], dtype: torch.dtype, bits: int) -> None:
    x = sample(shape, dtype)
    q, scale, zero_point = quantize_int(x, int8(num_bits=bits, strategy=strategy, dynamic=True))
    top = 2 ** (bits - 1) - 1
    assert q.dtype == torch.int8 and scale.dtype == torch.float32 and zero_point is None
    assert q.shape == x.shape and scale.shape == ((*x.shape[:-1], 1) if strategy == "token" else (1,) * x.ndim)
    if x.numel() == 0:
        return
    exact = rows(x, strategy).abs().amax(-1) / top
    torch.testing.assert_close(scale.double().flatten(), exact.clamp(min=TINY), rtol=1e-6, atol=0)
    same_but_for_ties(q, x.double() / scale.double(), -top - 1, top)
    assert torch.equal(q[x == 0], torch.zeros_like(q[x == 0]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("strategy", ["token", "tensor"])
def test_dynamic_asymmetric_int(strategy: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = sample(shape, dtype)
    q, scale, zero_point = quantize_int(x, int8(strategy=strategy, dynamic=True, symmetric=False))
    assert zero_point is not None and zero_point.dtype == torch.int32 and zero_point.shape == scale.shape
    if x.numel() == 0:
        return
    groups = rows(x, strategy)
    top, bottom = groups.amax(-1).clamp(min=0), groups.amin(-1).clamp(max=0)
    exact = ((top - bottom) / 255).clamp(min=TINY)
    torch.testing.assert_close(scale.double().flatten(), exact, rtol=1e-6, atol=0)
    same_but_for_ties(zero_point.flatten(), -128 - bottom / exact, -128, 127)
    same_but_for_ties(q, x.double() / scale.double() + zero_point.double(), -128, 127)
    # zero is exact, and the ends of the range are within half a step
    error = ((q.double() - zero_point.double()) * scale.double() - x.double()).abs()
    assert (error <= scale.double() * 0.51 + 1e-30).all() and (error[x == 0] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("zero_point", [None, -128, -7, 0, 127])
@pytest.mark.parametrize("stored_shape", [(1,), ()])
def test_static_int(
    dtype: torch.dtype, scale_dtype: torch.dtype, zero_point: int | None, stored_shape: tuple[int, ...]
) -> None:
    x = sample((5, 33), dtype)
    scale = torch.full(stored_shape, 0.037, dtype=scale_dtype)
    stored = None if zero_point is None else torch.full(stored_shape, zero_point, dtype=torch.int8)
    q, got_scale, got_zero = quantize_int(x, int8(strategy="tensor", symmetric=zero_point is None), scale, stored)
    assert got_scale.shape == (1, 1) and got_scale.dtype == torch.float32
    assert (got_zero is None) == (zero_point is None)
    exact = x.double() / scale.double() + (zero_point or 0)
    same_but_for_ties(q, exact, -128, 127)
    assert (q == (-128 if zero_point == -128 else 127)).any()  # the scale is so small that something saturates


def test_halves_round_to_even_and_the_range_is_whole() -> None:
    x = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -127.5, -128.0, -200.0, 126.5, 127.5, 200.0]])
    q, _, _ = quantize_int(x, int8(strategy="tensor"), torch.ones(1))
    assert q.tolist() == [[0, 2, 2, 0, -2, -2, -128, -128, -128, 126, 127, 127]]


def test_the_scale_of_a_token_does_not_depend_on_the_rank() -> None:
    x = sample((2, 3, 48), torch.float32)
    args = int8(strategy="token", dynamic=True)
    q3, s3, _ = quantize_int(x, args)
    q2, s2, _ = quantize_int(x.reshape(6, 48), args)
    assert torch.equal(q3.reshape(6, 48), q2) and torch.equal(s3.reshape(6, 1), s2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "size"), [(8, 16), (4, 16), (4, 5), (8, 64)])
def test_each_group_is_a_token_of_its_own(
    bits: int, size: int, symmetric: bool, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = sample(shape, dtype)
    args = int8(num_bits=bits, strategy="group", group_size=size, dynamic=True, symmetric=symmetric)
    q, scale, zero_point = quantize_int(x, args)
    assert q.shape == x.shape and scale.shape == (*x.shape[:-1], -(-x.shape[-1] // size))
    assert (zero_point is None) == symmetric and (zero_point is None or zero_point.shape == scale.shape)
    token = int8(num_bits=bits, strategy="token", dynamic=True, symmetric=symmetric)
    for g, part in enumerate(x.split(size, -1)):
        expected, its_scale, its_zero = quantize_int(part, token)
        assert torch.equal(q[..., g * size : (g + 1) * size], expected)
        assert torch.equal(scale[..., g : g + 1], its_scale)
        assert zero_point is None or torch.equal(zero_point[..., g : g + 1], its_zero)


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from([4, 8]),
    st.sampled_from(["token", "tensor", "group", "static"]),
    st.booleans(),
    st.integers(1, 4),
    st.integers(1, 40),
    st.integers(0, 2**31),
)
def test_what_is_multiplied_is_within_half_a_step(
    bits: int, way: str, symmetric: bool, rows: int, k: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, k, generator=generator) * 3 + 1
    args = int8(
        num_bits=bits,
        strategy="tensor" if way == "static" else way,
        dynamic=way != "static",
        symmetric=symmetric,
        group_size=7 if way == "group" else None,
    )
    step = torch.tensor([0.4 if bits == 8 else 3.0])
    stored = (step, None if symmetric else torch.tensor([3], dtype=torch.int8)) if way == "static" else (None, None)
    values, factor = seen_inputs(x, args, *stored, torch.float64)
    seen = values if factor is None else values * factor.double()
    assert (factor is None) == (way == "group") and seen.dtype == torch.float64
    _, scale, _ = quantize_int(x, args, *stored)
    if way == "group":
        scale = expand_groups(scale, 7, k)
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    steps = seen / scale.double()
    assert (steps - steps.round()).abs().max() < 1e-4 and steps.min() >= low - high and steps.max() <= high - low
    # a zero point is a whole number, so the ends of an asymmetric range may miss by half a step more
    error = (seen - x.double()).abs() / scale.double()
    assert error.max() <= (0.51 if symmetric or way == "static" else 1.01)


@pytest.mark.parametrize("zero_point", [None, -128, -5, 127])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outputs_take_256_values(zero_point: int | None, dtype: torch.dtype) -> None:
    y = (sample((5, 33), torch.float32) * 7).to(dtype)
    args = int8(strategy="tensor", symmetric=zero_point is None)
    stored = None if zero_point is None else torch.tensor([zero_point], dtype=torch.int8)
    scale = torch.tensor([0.125], dtype=torch.bfloat16)
    got = quantize_outputs(y, args, scale, stored)
    zero = zero_point or 0
    expected = ((y.double() / 0.125 + zero).round().clamp(-128, 127) - zero) * 0.125
    assert got.dtype == dtype and torch.equal(got.double(), expected)


def fp8_by_definition(value: float) -> float:
    """Nearest e4m3 value, ties to the even mantissa."""
    if value == 0 or math.isnan(value):
        return value
    exponent = max(math.floor(math.log2(abs(value))), -6)
    step = 2.0 ** (exponent - 3)
    return max(-448.0, min(448.0, round(value / step) * step))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("strategy", ["token", "tensor", "group"])
def test_dynamic_fp8(strategy: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = sample(shape, dtype)
    size = 16 if strategy == "group" else None
    q, scale = quantize_fp8(x, fp8(strategy=strategy, dynamic=True, group_size=size))
    assert q.dtype == torch.float8_e4m3fn and q.shape == x.shape and scale.dtype == torch.float32
    if size is not None:
        assert scale.shape == (*x.shape[:-1], -(-x.shape[-1] // size))
        for g in range(scale.shape[-1]):
            part = x[..., g * size : (g + 1) * size].double()
            if x.numel():
                exact = (part.abs().amax(-1) / 448).clamp(min=TINY)
                torch.testing.assert_close(scale[..., g].double(), exact, rtol=1e-6, atol=0)
        scale = expand_groups(scale, size, x.shape[-1])
    elif x.numel():
        exact = (rows(x, strategy).abs().amax(-1) / 448).clamp(min=TINY)
        torch.testing.assert_close(scale.double().flatten(), exact, rtol=1e-6, atol=0)
    quotient = x.float() / scale
    expected = torch.tensor([fp8_by_definition(v) for v in quotient.flatten().tolist()]).reshape(x.shape)
    assert torch.equal(q.float(), expected)


def test_static_fp8_saturates_and_keeps_nan() -> None:
    x = torch.tensor([[1.0, 448.0, 449.0, 1e9, -1e9, float("inf"), float("nan"), 0.0]])
    q, scale = quantize_fp8(x, fp8(strategy="tensor"), torch.tensor([1.0], dtype=torch.bfloat16))
    values = q.float()[0].tolist()
    assert values[:6] == [1, 448, 448, 448, -448, 448] and math.isnan(values[6]) and values[7] == 0
    assert scale.tolist() == [[1.0]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_bad_value_shows_in_the_scale_of_its_own_token_only(bad: float) -> None:
    x = sample((4, 32), torch.float32)
    x[2, 5] = bad
    for args in (int8(strategy="token", dynamic=True), int8(strategy="token", dynamic=True, symmetric=False)):
        _, scale, _ = quantize_int(x, args)
        assert torch.isfinite(scale[:, 0]).tolist() == [True, True, False, True]
    _, scale = quantize_fp8(x, fp8(strategy="token", dynamic=True))
    assert torch.isfinite(scale[:, 0]).tolist() == [True, True, False, True]


def test_the_input_is_not_changed() -> None:
    x = sample((5, 33), torch.float32)
    before = x.clone()
    for args in (int8(strategy="token", dynamic=True, symmetric=False), int8(strategy="tensor", dynamic=True)):
        quantize_int(x, args)
    quantize_fp8(x, fp8(strategy="group", group_size=16, dynamic=True))
    quantize_fp8(x, fp8(strategy="token", dynamic=True))
    assert torch.equal(x, before)


def test_a_view_of_a_larger_tensor_is_quantized_like_its_copy() -> None:
    x = sample((8, 100), torch.bfloat16).t()[10:40]
    for args in (int8(strategy="token", dynamic=True), int8(strategy="token", dynamic=True, symmetric=False)):
        assert torch.equal(quantize_int(x, args)[0], quantize_int(x.contiguous(), args)[0])


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda x: quantize_int(x, fp8(strategy="token", dynamic=True)), "not int args"),
        (lambda x: quantize_int(x, int8(strategy="tensor")), "need their stored scale"),
        (lambda x: quantize_int(x, int8(strategy="tensor", symmetric=False), torch.ones(1)), "stored zero point"),
        (lambda x: quantize_int(x, int8(strategy="group", group_size=8)), "static inputs have strategy tensor"),
        (lambda x: quantize_outputs(x, int8(strategy="token", dynamic=True), None, None), "stored scale"),
        (lambda x: quantize_outputs(x, int8(strategy="tensor"), None, None), "need their stored scale"),
        (lambda x: quantize_fp8(x, int8(strategy="token", dynamic=True)), "not symmetric float8"),
        (lambda x: quantize_fp8(x, fp8(strategy="channel"), torch.ones(1)), "strategy tensor"),
    ],
)
def test_other_args_are_refused(call: object, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        call(torch.ones(2, 16))  # type: ignore[operator]
