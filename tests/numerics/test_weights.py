"""Dequantization against the formula, one weight at a time: (q - z) * s with each step rounded to the scale's dtype."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from quantdispatch.numerics.weights import dequantize
from quantdispatch.registry.args import QuantArgs

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def codes_of(args: QuantArgs, n: int, k: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(n * k)
    if args.type == "float":
        return torch.randn(n, k, generator=generator).mul(50).to(torch.float8_e4m3fn)
    half = 1 << (args.num_bits - 1)
    return torch.randint(-half, half, (n, k), generator=generator).to(torch.int8)


def grid_of(args: QuantArgs, n: int, k: int) -> tuple[int, int]:
    if args.strategy == "block":
        assert args.block_structure is not None
        return -(-n // args.block_structure[0]), -(-k // args.block_structure[1])
    return {"tensor": (1, 1), "channel": (n, 1), "group": (n, k // (args.group_size or 1))}[str(args.strategy)]


def cell(args: QuantArgs, row: int, column: int, g_idx: list[int] | None) -> tuple[int, int]:
    """Which scale a weight has."""
    if args.strategy == "tensor":
        return 0, 0
    if args.strategy == "channel":
        return row, 0
    if args.strategy == "group":
        return row, column // (args.group_size or 1) if g_idx is None else g_idx[column]
    assert args.block_structure is not None
    return row // args.block_structure[0], column // args.block_structure[1]


CASES = [
    *[QuantArgs(num_bits=b, strategy="tensor", symmetric=s) for b in (2, 5, 8) for s in (True, False)],
    *[QuantArgs(num_bits=b, strategy="channel", symmetric=s) for b in (3, 8) for s in (True, False)],
    *[QuantArgs(num_bits=b, strategy="group", group_size=g, symmetric=s)
      for b, g in ((4, 8), (8, 3), (6, 24)) for s in (True, False)],
    QuantArgs(num_bits=8, type="float", strategy="tensor"),
    QuantArgs(num_bits=8, type="float", strategy="channel"),
    *[QuantArgs(num_bits=8, type="float", strategy="block", block_structure=b) for b in ([4, 8], [7, 5], [128, 128])],
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("args", CASES, ids=lambda args: args.describe())
def test_every_weight_is_the_rounded_product(args: QuantArgs, dtype: torch.dtype) -> None:
    n, k = 9, 24
    codes, grid = codes_of(args, n, k), grid_of(args, n, k)
    scale = (torch.rand(grid, generator=torch.Generator().manual_seed(1)) + 0.01).to(dtype)
    half = 1 << (args.num_bits - 1)
    zero_point = None if args.symmetric else torch.randint(-half, half, grid).to(torch.int8)
    orders: list[torch.Tensor | None] = [None]
    if args.strategy == "group":
        orders.append(torch.randperm(k).div(args.group_size, rounding_mode="floor").to(torch.int32))
    for g_idx in orders:
        weight = dequantize(codes, scale, zero_point, args, g_idx=g_idx)
        exact = dequantize(codes, scale, zero_point, args, g_idx=g_idx, dtype=torch.float64)
        assert weight.dtype == dtype and exact.dtype == torch.float64 and weight.shape == (n, k)
        columns = None if g_idx is None else g_idx.tolist()
        for row in range(n):
            for column in range(k):
                at = cell(args, row, column, columns)
                difference = float(codes[row, column]) - (0 if zero_point is None else int(zero_point[at]))
                value = Fraction(difference) * Fraction(float(scale[at]))
                assert Fraction(float(exact[row, column])) == value
                assert weight[row, column] == torch.tensor(float(value), dtype=torch.float64).to(dtype)


def test_a_narrower_dtype_is_one_cast_of_the_wider_product() -> None:
    args = QuantArgs(num_bits=8, strategy="channel")
    codes = codes_of(args, 16, 64)
    scale = torch.rand(16, 1) + 0.1
    assert torch.equal(dequantize(codes, scale, None, args, dtype=torch.bfloat16), (codes * scale).to(torch.bfloat16))


def test_nan_codes_stay_nan() -> None:
    args = QuantArgs(num_bits=8, type="float", strategy="block", block_structure=[2, 2])
    codes = torch.full((3, 3), 1.0).to(torch.float8_e4m3fn)
    codes.view(torch.uint8)[1, 2] = 0x7F
    codes.view(torch.uint8)[2, 0] = 0xFF
    weight = dequantize(codes, torch.full((2, 2), 0.5), None, args)
    assert torch.isnan(weight).nonzero().tolist() == [[1, 2], [2, 0]]


def test_nothing_given_is_changed() -> None:
    args = QuantArgs(num_bits=4, strategy="group", group_size=8, symmetric=False)
    codes, scale = codes_of(args, 4, 16), torch.rand(4, 2)
    zero_point = torch.ones(4, 2, dtype=torch.int8)
    before = codes.clone(), scale.clone(), zero_point.clone()
    dequantize(codes, scale, zero_point, args)
    assert all(torch.equal(a, b) for a, b in zip(before, (codes, scale, zero_point), strict=True))


def test_token_weights_are_refused() -> None:
    args = QuantArgs(strategy="token", dynamic=True)
    with pytest.raises(ValueError, match="not token"):
        dequantize(torch.zeros(2, 2, dtype=torch.int8), torch.ones(2, 1), None, args)
