"""fp4 and fp6 codes in bytes: against the formats' definition, and against compressed-tensors' own packing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantdispatch.numerics.microfloats import pack_floats, round_to_fp4, unpack_floats, values

FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


def their(bits: int, name: str) -> Any:
    """compressed-tensors' own function for codes of ``bits`` bits."""
    pytest.importorskip("compressed_tensors", reason="packing is compared with compressed-tensors' own")
    try:
        module = import_module(f"compressed_tensors.compressors.{'nvfp4' if bits == 4 else 'mxfp6'}.helpers")
    except ImportError:
        pytest.skip(f"this compressed-tensors has no fp{bits}")
    return getattr(module, f"{name}_fp{bits}_{'to' if name == 'pack' else 'from'}_uint8")


def every_byte(bits: int) -> torch.Tensor:
    """uint8 [256, w]: every byte at every place of a unit."""
    width = {4: 1, 6: 3}[bits]
    shifts = torch.arange(width * 4) * 85
    return ((torch.arange(256).unsqueeze(1) + shifts) % 256).to(torch.uint8)


def test_fp4_is_e2m1() -> None:
    assert values(4) == (*FP4, *(-value for value in FP4))


def test_fp6_is_e2m3() -> None:
    exponents = [(code >> 3 & 3, code & 7) for code in range(32)]
    expected = [m / 8 if e == 0 else (1 + m / 8) * 2.0 ** (e - 1) for e, m in exponents]
    assert values(6) == (*expected, *(-value for value in expected))
    assert max(expected) == 7.5


@pytest.mark.parametrize("bits", [4, 6])
def test_every_byte_unpacks_as_theirs(bits: int) -> None:
    packed = every_byte(bits)
    codes = unpack_floats(packed, bits)
    assert codes.dtype == torch.float8_e4m3fn and codes.is_contiguous()
    rows, k = codes.shape
    expected = their(bits, "unpack")(packed, rows, k, dtype=torch.float32)
    assert torch.equal(codes.float(), expected)
    assert torch.equal(codes.float().signbit(), expected.signbit())


@pytest.mark.parametrize("bits", [4, 6])
def test_low_bits_come_first(bits: int) -> None:
    """A row that counts: code i is the i-th of the byte stream, least significant bit first."""
    numbers = list(range(1 << bits))
    stream = sum(code << (bits * i) for i, code in enumerate(numbers))
    packed = torch.tensor([list(stream.to_bytes(len(numbers) * bits // 8, "little"))], dtype=torch.uint8)
    assert unpack_floats(packed, bits).float().tolist() == [list(values(bits))]


@settings(max_examples=80, deadline=None)
@given(st.sampled_from([4, 6]), st.integers(0, 9), st.integers(0, 33), st.integers(0, 2**31))
def test_packing_is_the_inverse(bits: int, rows: int, units: int, seed: int) -> None:
    width = units * (1 if bits == 4 else 3)
    packed = torch.randint(0, 256, (rows, width), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    codes = unpack_floats(packed, bits)
    assert codes.shape == (rows, width * 8 // bits)
    assert torch.equal(pack_floats(codes, bits), packed)
    # a transposed matrix is packed by its values, not by its memory
    assert torch.equal(pack_floats(codes.t().contiguous().t(), bits), packed)
    # so is a matrix that is a part of another
    assert torch.equal(unpack_floats(torch.cat([packed, packed], 1)[:, :width], bits).view(torch.uint8),
                       codes.view(torch.uint8))  # fmt: skip


@pytest.mark.parametrize("bits", [4, 6])
def test_packs_as_theirs(bits: int) -> None:
    codes = unpack_floats(every_byte(bits), bits)
    assert torch.equal(pack_floats(codes, bits), their(bits, "pack")(codes.to(torch.bfloat16)))


def test_rows_are_unpacked_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantdispatch.numerics.microfloats._CHUNK", 7)
    for bits in (4, 6):
        packed = torch.randint(0, 256, (11, 6), dtype=torch.uint8)
        assert torch.equal(pack_floats(unpack_floats(packed, bits), bits), packed)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: unpack_floats(torch.zeros(2, 4, dtype=torch.int32), 4), "uint8 of two dimensions"),
        (lambda: unpack_floats(torch.zeros(4, dtype=torch.uint8), 4), "uint8 of two dimensions"),
        (lambda: unpack_floats(torch.zeros(2, 4, dtype=torch.uint8), 6), "4 bytes a row"),
        (lambda: pack_floats(torch.zeros(2, 4), 4), "float8_e4m3fn of two dimensions"),
        (lambda: pack_floats(torch.zeros(2, 3).to(torch.float8_e4m3fn), 4), "3 codes of 4 bits"),
        (lambda: pack_floats(torch.zeros(2, 6).to(torch.float8_e4m3fn), 6), "6 codes of 6 bits"),
        (lambda: pack_floats(torch.full((1, 4), 2.5).to(torch.float8_e4m3fn), 4), "no 4-bit float"),
        (lambda: pack_floats(torch.full((1, 4), 8.0).to(torch.float8_e4m3fn), 6), "no 6-bit float"),
        (lambda: pack_floats(torch.full((1, 4), torch.nan).to(torch.float8_e4m3fn), 4), "no 4-bit float"),
    ],
)
def test_what_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_is_to_the_nearest_and_ties_go_to_even(dtype: torch.dtype) -> None:
    steps = torch.arange(-40, 41, dtype=torch.float64) / 4  # every value and every tie, and past both ends
    rounded = round_to_fp4(steps.to(dtype))
    assert rounded.dtype == dtype
    grid = torch.tensor(sorted(set(values(4))), dtype=torch.float64)
    for given_, found in zip(steps.tolist(), rounded.double().tolist(), strict=True):
        distance = (grid - given_).abs()
        nearest = grid[distance == distance.min()].tolist()
        assert found in nearest
        if len(nearest) == 2:  # the code with an even mantissa bit
            assert FP4.index(abs(found)) % 2 == 0, given_


@pytest.mark.parametrize("dtype", DTYPES[:3])
def test_rounds_as_theirs(dtype: torch.dtype) -> None:
    data = pytest.importorskip("compressed_tensors.quantization.quant_args", reason="compared with its rounding")
    x = torch.randn(20_000, generator=torch.Generator().manual_seed(1)) * 4
    edges = torch.tensor([0.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 7.0, 1e-8, torch.inf, torch.nan])
    x = torch.cat([x, edges, edges.nextafter(torch.tensor(10.0)), edges.nextafter(torch.tensor(-10.0))]).to(dtype)
    expected = data.FP4_E2M1_DATA.cast_to_fp4(x.clone().clamp(-6, 6))
    torch.testing.assert_close(round_to_fp4(x), expected, rtol=0, atol=0, equal_nan=True)
