"""The AVX-512 kernels, emulated: every format, shape, number of rows and dtype against float64."""

from __future__ import annotations

import emulated_avx512
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from native_weight import FP4, FP8, INT, Case, linear

from quantdispatch.backends.cpu.native import library as native
from quantdispatch.backends.cpu.native.library import Inputs
from quantdispatch.numerics.activations import quantize_int
from quantdispatch.registry.args import QuantArgs

if (reason := emulated_avx512.why_not()) is not None:
    pytest.skip(f"the AVX-512 kernels cannot be emulated: {reason}", allow_module_level=True)

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
# (format, slot bits, bits of zero points)
FORMATS = [
    *((INT, bits, zero) for bits in (2, 3, 4) for zero in (0, 4, 8)),
    *((INT, bits, zero) for bits in (5, 8) for zero in (0, 8)),
    (FP4, 4, 0),
    (FP8, 8, 0),
]
SCALES = [BF16, FP16, FP32, "e8m0", "e4m3"]
#: half an ulp of a result, relative to it; and the smallest subnormal, which is absolute
ROUNDING = {BF16: (2**-8, 1e-40), FP16: (2**-11, 6e-8), FP32: (2**-24, 1e-44)}
#: fp32 sums, relative to the sum of the terms' magnitudes
SUM = 2e-6
ROWS = st.one_of(st.integers(1, 7), st.integers(8, 40))
GROUPS = st.one_of(st.sampled_from([1, 16, 32, 64, 128]), st.integers(1, 600))


@pytest.fixture(scope="module", params=native.ISAS[2:])
def library(request):
    """With products of bf16 pairs, and with those of bytes."""
    loaded = emulated_avx512.load()
    assert loaded.qd_set_isa(native.ISAS.index(request.param)) == 0
    return loaded


def rows_of_x(m, case, dtype, shift=0.3, padding=5):
    """Rows that are not contiguous, and whose sums are not 0."""
    random = torch.Generator().manual_seed(case.seed + 1)
    return (torch.randn(m, case.k + padding, generator=random) + shift).to(dtype)[:, : case.k]


def assert_right(case, x, y):
    exact, most = x.double() @ case.dense().T, x.double().abs() @ case.magnitude().T
    if case.bias_values is not None:
        exact, most = exact + case.bias_values.double(), most + case.bias_values.double().abs()
    relative, absolute = ROUNDING[x.dtype]
    y = y.double()
    if x.dtype == FP16:
        y, exact = y.clamp(-65504, 65504), exact.clamp(-65504, 65504)
    off = (y - exact).abs() - (exact.abs() * relative + most * SUM + absolute)
    assert off.max() <= 0, f"off by {off.max()}"


@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 6, 7, 13, 24])
@pytest.mark.parametrize(("kind", "bits", "zero"), FORMATS)
def test_formats_at_every_number_of_rows(library, kind, bits, zero, m):
    """A full tile and a narrower one; two groups and a part of a third."""
    case = Case(64 + 48, 150, 64, kind, bits, BF16, zero, bias=True, seed=m)
    weight = case.pack(library)
    for dtype in (BF16, FP32):
        x = rows_of_x(m, case, dtype)
        assert_right(case, x, linear(library, weight, x))


@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(1, 200), k=st.integers(1, 700), group=GROUPS, form=st.sampled_from(FORMATS),
    scale=st.sampled_from(SCALES), unit=st.sampled_from([1.0, 0.125, 1 / 37]), bias=st.booleans(),
    ordered=st.booleans(), m=ROWS, dtype=st.sampled_from([BF16, FP16, FP32]), seed=st.integers(0, 1 << 30),
)  # fmt: skip
@example(1, 1, 1, FORMATS[0], BF16, 1.0, False, False, 1, BF16, 0)
@example(64, 700, 16, (FP4, 4, 0), "e4m3", 1 / 37, False, False, 40, BF16, 1)  # scales are folded into codes
@example(64, 700, 32, (FP4, 4, 0), "e8m0", 1.0, False, True, 30, BF16, 2)
@example(80, 700, 700, (INT, 8, 8), FP32, 1.0, False, False, 1, FP32, 3)  # a group of several spans
def test_shapes(library, n, k, group, form, scale, unit, bias, ordered, m, dtype, seed):
    case = Case(n, k, min(group, k), *form[:2], scale, form[2], unit, bias, ordered, seed)
    x = rows_of_x(m, case, dtype)
    assert_right(case, x, linear(library, case.pack(library), x))


@pytest.mark.parametrize("m", [1, 3, 9, 40])
def test_a_row_depends_on_no_other(library, m):
    """The same row of x gives the same result wherever it stands among the rows of a call, on any number of threads."""
    for form, scale in (((INT, 4, 4), BF16), ((FP4, 4, 0), "e4m3"), ((INT, 8, 0), FP16)):
        case = Case(144, 200, 16, form[0], form[1], scale, form[2])
        weight = case.pack(library)
        x = rows_of_x(1, case, BF16).expand(m, -1).contiguous()
        one, three = linear(library, weight, x), linear(library, weight, x, threads=3)
        assert torch.equal(one, three)
        assert torch.equal(one, one[:1].expand(m, -1))


@pytest.mark.parametrize("m", [1, 4, 9, 12, 30])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
def test_what_is_not_finite_stays_so(library, m, value, dtype):
    case = Case(20, 40, 40, seed=3)
    x = rows_of_x(m, case, dtype)
    x[-1, 7] = value
    y = linear(library, case.pack(library), x)
    there = case.dense()[:, 7] != 0
    assert not y[-1][there].isfinite().any()
    assert torch.equal(y[-1].isinf(), there if value == value else torch.zeros(20, dtype=torch.bool))
    assert y[:-1].isfinite().all()


@pytest.mark.parametrize("m", [1, 2, 5, 30])
@pytest.mark.parametrize(("kind", "bits"), [(INT, 4), (INT, 8), (INT, 3), (FP4, 4)])
def test_small_values_beside_a_large_one(library, m, kind, bits):
    """Values of bf16 down to 2^-13 of the largest lose nothing, also where that one is multiplied by 0; below that what
    is lost is in proportion to the largest."""
    case = Case(80, 200, 100, kind, bits, FP32, seed=9)
    case.codes[:, 7] = 0 if kind == FP4 else case.offset()
    x = rows_of_x(m, case, BF16).clamp(-1.9, 1.9)
    x[x.abs() < 2**-3] = 0
    weight, w = case.pack(library), case.magnitude()
    x[:, 7] = 2.0**10
    assert_right(case, masked(x), linear(library, weight, x.float()))
    x[:, 7] = 2.0**30
    off = (linear(library, weight, x.float()).double() - masked(x).double() @ case.dense().T).abs()
    assert (off <= 2.0 ** (30 - 22) * w.sum(1)).all()


def masked(x):
    x = x.float().clone()
    x[:, 7] = 0
    return x


@pytest.mark.parametrize("m", [1, 4, 9, 12, 30])
def test_nan_codes_and_scales(library, m):
    case = Case(70, 64, 32, FP8, 8, BF16, seed=4)
    case.codes[5, 9] = 0x7F
    case.codes[66, 40] = 0xFF
    y = linear(library, case.pack(library), rows_of_x(m, case, BF16))
    assert y[:, [5, 66]].isnan().all()
    assert y.isnan().sum() == 2 * m
    for scale, code in (("e8m0", 255), ("e4m3", 0x7F)):
        case = Case(70, 64, 32, FP4, 4, scale, seed=5)
        case.scales[7, 1] = code
        y = linear(library, case.pack(library), rows_of_x(m, case, BF16))
        assert y[:, 7].isnan().all()
        assert y.isnan().sum() == m


def test_powers_of_two_at_the_ends_of_the_range(library):
    """Scales which, folded into codes, would leave the range of bf16."""
    for m in (1, 30):
        case = Case(16, 32, 32, FP4, 4, "e8m0", seed=6)
        case.scales[:8], case.scales[8:] = 0, 252
        x = rows_of_x(m, case, FP32) * 2.0 ** torch.tensor([20.0] * 31 + [10.0])
        exact = x.double() @ case.dense().T
        y = linear(library, case.pack(library), x).double()
        assert torch.allclose(y[:, :8], exact[:, :8], rtol=1e-5, atol=1e-35)


@settings(max_examples=120, deadline=None)
@given(
    n=st.integers(1, 200), k=st.integers(1, 700), group=GROUPS, bits=st.sampled_from([2, 3, 4, 5, 8]),
    zero=st.booleans(), scale=st.sampled_from([BF16, FP16, FP32]), bias=st.booleans(), ordered=st.booleans(),
    m=ROWS, dtype=st.sampled_from([BF16, FP16, FP32]), symmetric=st.booleans(), dynamic=st.booleans(),
    token=st.booleans(), x_bits=st.sampled_from([8, 4]), seed=st.integers(0, 1 << 30),
)  # fmt: skip
def test_int8_activations(
    library, n, k, group, bits, zero, scale, bias, ordered, m, dtype, symmetric, dynamic, token, x_bits, seed
):
    case = Case(n, k, min(group, k), INT, bits, scale, 8 if zero else 0, 0.5, bias, ordered, seed)
    x = rows_of_x(m, case, dtype, shift=0.0 if symmetric else 0.7)
    token = token and dynamic
    args = QuantArgs(num_bits=x_bits, symmetric=symmetric, dynamic=dynamic, strategy="token" if token else "tensor")
    stored = (None, None) if dynamic else (torch.tensor([0.02]), torch.tensor([-3]))
    q, by, shift = quantize_int(x, args, *stored)
    inputs = Inputs(
        bits=x_bits, symmetric=symmetric, dynamic=dynamic, per_tensor=not token, scale=0.02,
        zero_point=0 if symmetric else -3,
    )  # fmt: skip
    seen = q.double() - (0 if shift is None else shift.double())
    extra = 0 if case.bias_values is None else case.bias_values.double()
    exact = seen @ case.dense().T * by.double() + extra
    most = seen.abs() @ case.magnitude().T * by.double() + abs(extra)
    y = linear(library, case.pack(library), x, inputs).double()
    relative, absolute = ROUNDING[dtype]
    off = (y - exact).abs() - (exact.abs() * relative + most * SUM + absolute)
    assert off.max() <= 0, f"off by {off.max()}"
