"""The native weight-only kernels: any shape, format, batch and instruction set against float64, and their layout."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantdispatch.backends.cpu.native import library, probe, product, tiles
from quantdispatch.backends.cpu.native.linear import NativeLinear
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.errors import QuantDispatchError

REASON = probe.linear()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"the native kernels do not run here: {REASON}")
ISAS = library.ISAS[: library.ISAS.index(library.best_isa()) + 1] if REASON is None else ("portable",)
#: relative, of what is rounded once at the end; fp32 sums of up to 512 products at a time
LIMITS = {"bfloat16": 2.2e-3, "float16": 3e-4, "float32": 5e-6}
#: half a unit in the last place, of the value
ROUNDING = {"bfloat16": 2**-8, "float16": 2**-11, "float32": 2**-23}
DTYPES = {name: getattr(torch, name) for name in LIMITS}
MX = {"strategy": "group", "group_size": 32, "scale_dtype": "uint8"}


LONG = [QuantArgs(num_bits=8, strategy="channel", symmetric=False), QuantArgs(type="float", strategy="channel")]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = library.isa()
    threads = torch.get_num_threads()
    yield
    library.set_isa(before)
    torch.set_num_threads(threads)


def floats(**fields: Any) -> QuantArgs:
    return QuantArgs(type="float", **fields)


@st.composite
def weights(draw: Any) -> QuantArgs:
    form = draw(st.sampled_from(["int", "int", "int", "fp8", "nvfp4", "mxfp4", "mxfp6", "mxfp8"]))
    if form == "nvfp4":
        return floats(num_bits=4, strategy="tensor_group", group_size=16)
    if form.startswith("mx"):
        return floats(num_bits=int(form[-1]), **MX)
    strategy = draw(st.sampled_from(["tensor", "channel", "group", "block"]))
    fields: dict[str, Any] = {"strategy": strategy}
    if strategy == "group":
        fields["group_size"] = draw(st.sampled_from([1, 2, 7, 16, 24, 32, 40, 64, 128, 200, 520]))
    if strategy == "block":
        fields["block_structure"] = [draw(st.sampled_from([1, 16, 20, 64, 128])), draw(st.integers(1, 140))]
    if form == "fp8":
        return floats(**fields)
    if strategy == "group" and draw(st.booleans()):
        fields["actorder"] = "group"
    return QuantArgs(num_bits=draw(st.integers(1, 8)), symmetric=draw(st.booleans()), **fields)


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    args = draw(weights())
    unit = args.group_size if args.group_size and args.group_size > 0 else 1
    k = unit * draw(st.integers(1, max(1, 700 // unit)))
    return {
        "args": args,
        "n": draw(st.sampled_from([1, 5, 16, 47, 64, 65, 130, 192])),
        "k": k,
        "m": draw(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 25, 49])),
        "dtype": draw(st.sampled_from(list(LIMITS))),
        "scales": draw(st.sampled_from(list(LIMITS))),
        "bias": draw(st.booleans()),
        "seed": draw(st.integers(0, 9999)),
        "isa": draw(st.sampled_from(ISAS)),
        "spread": draw(st.sampled_from(["rows", "strided", "columns"])),
    }


def rows(m: int, k: int, dtype: torch.dtype, seed: int, spread: str = "rows") -> torch.Tensor:
    """[m, k], contiguous, as part of wider rows, or as part of wider columns."""
    x = torch.randn(m, k, generator=torch.Generator().manual_seed(seed)).to(dtype)
    if spread == "rows":
        return x
    wide = torch.zeros(m, k * 2 + 3, dtype=dtype)
    view = wide[:, 3 : k + 3] if spread == "strided" else wide[:, 3::2]
    view.copy_(x)
    return view


def bound(y: torch.Tensor, exact: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, dtype: str) -> None:
    """Each value is the exact one, rounded once to the dtype, but for what fp32 sums are off by; and all together are
    as near as rounding makes them, where they are many and no few of them are most of the norm."""
    assert not y.isnan().any()
    error = (y.double() - exact).abs()
    largest = x.double().abs().sum(-1, keepdim=True) * weight.abs().max()
    assert bool((error <= exact.abs() * ROUNDING[dtype] + largest * 2e-6 + 2.0**-25).all())
    squares = exact.square()
    if squares.sum().square() >= 300 * squares.square().sum():
        assert error.norm() <= LIMITS[dtype] * exact.norm() + 5e-6 * largest.norm()


@given(case=cases())
@settings(max_examples=150, deadline=None)
def test_any_shape(case: dict[str, Any], layers: Any) -> None:
    args, n, k = case["args"], case["n"], case["k"]
    layer = layers.make(
        args, n=n, k=k, dtype=case["dtype"], scale_dtype=DTYPES[case["scales"]], bias=case["bias"], seed=case["seed"]
    )
    impl = NativeLinear(layer.spec)
    state = impl.pack(layer.operands)
    assert layers.same(impl.unpack(state), layer.operands)
    library.set_isa(case["isa"])
    x = rows(case["m"], k, DTYPES[case["dtype"]], case["seed"], case["spread"])
    y = impl.apply(x, state)
    assert y.dtype == x.dtype and y.shape == (case["m"], n)
    bound(y, layer.output(x), x, layer.weight(), case["dtype"])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (300, 80, 96), (1029, 24, 40), (4096, 17, 33)])
def test_many_rows(isa: str, m: int, n: int, k: int, layers: Any) -> None:
    layer = layers.make(QuantArgs(num_bits=4, symmetric=False, strategy="channel"), n=n, k=k, seed=m)
    impl = NativeLinear(layer.spec)
    library.set_isa(isa)
    x = rows(m, k, torch.bfloat16, m)
    bound(impl.apply(x, impl.pack(layer.operands)), layer.output(x), x, layer.weight(), "bfloat16")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("m", [1, 3, 20])
@pytest.mark.parametrize("args", LONG, ids=lambda args: args.describe())
def test_long_sums_stay_accurate(isa: str, m: int, args: QuantArgs, layers: Any) -> None:
    """One group of 33,000 columns, and inputs that are all of one sign."""
    layer = layers.make(args, n=16, k=33000, dtype="float32", scale_dtype=torch.float32)
    impl = NativeLinear(layer.spec)
    library.set_isa(isa)
    x = rows(m, 33000, torch.float32, m).abs()
    y, exact = impl.apply(x, impl.pack(layer.operands)).double(), layer.output(x)
    assert ((y - exact).abs() <= 3e-6 * (x.double().abs() @ layer.weight().abs().T)).all()


@pytest.mark.parametrize("isa", ISAS)
def test_threads_and_shares_change_nothing(isa: str, layers: Any) -> None:
    library.set_isa(isa)
    for args in (QuantArgs(num_bits=4, group_size=32), floats(strategy="channel")):
        layer = layers.make(args, n=208, k=320)
        impl = NativeLinear(layer.spec)
        state = impl.pack(layer.operands)
        for m in (1, 9, 150):
            x = rows(m, 320, torch.bfloat16, m)
            results = []
            for threads in (1, 2, 3, 16):
                torch.set_num_threads(threads)
                results.append(impl.apply(x, state))
            assert all(torch.equal(results[0], other) for other in results)


def test_calls_from_several_threads(layers: Any) -> None:
    work = []
    for n, k in ((64, 64), (96, 320), (40, 160)):
        layer = layers.make(QuantArgs(num_bits=5, group_size=16), n=n, k=k)
        impl = NativeLinear(layer.spec)
        for m in (1, 5, 30):
            state, x = impl.pack(layer.operands), rows(m, k, torch.bfloat16, m)
            work.append((impl, state, x, impl.apply(x, state)))
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda job: (job[3], job[0].apply(job[2], job[1])), work * 20))
    assert all(torch.equal(expected, got) for expected, got in results)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("m", [1, 20])
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_in_x_shows(isa: str, m: int, value: float, layers: Any) -> None:
    """As the exact product has it: NaN where a NaN or a weight of zero meets it, else an infinity of the right sign."""
    layer = layers.make(QuantArgs(num_bits=4, group_size=32), n=64, k=96)
    impl = NativeLinear(layer.spec)
    library.set_isa(isa)
    x = rows(m, 96, torch.bfloat16, 1)
    x[-1, 40] = value
    y, exact = impl.apply(x, impl.pack(layer.operands)), layer.output(x)
    assert torch.equal(y[-1].isnan(), exact[-1].isnan())
    assert torch.equal(y[-1].nan_to_num(), exact[-1].to(torch.bfloat16).nan_to_num())
    assert y[:-1].isfinite().all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("m", [1, 4, 40])
def test_every_code_of_every_format(isa: str, m: int, layers: Any) -> None:
    """All codes in all positions of a dword, without rounding: x has a single one."""
    library.set_isa(isa)
    every = [QuantArgs(num_bits=bits, strategy="channel") for bits in range(1, 9)]
    every += [floats(strategy="channel"), floats(num_bits=4, **MX), floats(num_bits=6, **MX)]
    for args in every:
        layer = layers.make(args, n=256, k=96, dtype="float32", scale_dtype=torch.float32)
        codes = layer.operands.codes
        if args.type == "float" and args.num_bits == 8:
            every_byte = torch.arange(256, dtype=torch.int64)
            bits = (every_byte[:, None] + torch.arange(96)) % 256
            bits[(bits & 127) == 127] = 0  # no NaN
            codes = bits.to(torch.uint8).view(torch.float8_e4m3fn)
        elif args.type == "int":
            span = 1 << args.num_bits
            codes = ((torch.arange(256)[:, None] + torch.arange(96)) % span - span // 2).to(torch.int8)
        layer.operands.codes = codes
        layer.operands.scale = torch.full_like(
            layer.operands.scale, 127 if args.type == "float" and args.group_size == 32 else 1
        )
        impl = NativeLinear(layer.spec)
        state = impl.pack(layer.operands)
        assert layers.same(impl.unpack(state), layer.operands)
        for start in range(0, 96, m):
            x = torch.zeros(m, 96)
            columns = torch.arange(start, start + m) % 96
            x[torch.arange(m), columns] = 1
            assert torch.equal(impl.apply(x, state).double(), layer.weight().T[columns]), args.describe()


def test_tiles_are_undone() -> None:
    for n in (1, 16, 17, 63, 64, 65, 128, 200):
        for groups in (1, 3, 8):
            values = torch.randint(0, 16, (n, groups), dtype=torch.uint8)
            flat = tiles.to_tiles(values)
            assert flat.numel() == tiles.padded(n) * groups
            assert torch.equal(tiles.from_tiles(flat, n, groups), values)
            index = torch.randperm(n)
            assert torch.equal(tiles.rows_of_tiles(flat, n, groups, index), values[index])
            joined = tiles.join_nibbles(flat, n, groups)
            assert torch.equal(tiles.split_nibbles(joined, n, groups), flat)


def test_zero_points_beyond_a_nibble(layers: Any) -> None:
    layer = layers.make(QuantArgs(num_bits=3, group_size=32, symmetric=False), n=80, k=96)
    layer.operands.zero_point = torch.full_like(layer.operands.zero_point, 100)
    impl = NativeLinear(layer.spec)
    state = impl.pack(layer.operands)
    assert state["zero"].numel() == 80 * 3 and layers.same(impl.unpack(state), layer.operands)
    for m in (1, 20):
        x = rows(m, 96, torch.bfloat16, m)
        bound(impl.apply(x, state), layer.output(x), x, layer.weight(), "bfloat16")


def test_other_tensors_at_the_same_place(layers: Any) -> None:
    """What is remembered of a weight is checked: memory is used again, and scales are exchanged."""
    layer = layers.make(floats(num_bits=4, strategy="tensor_group", group_size=16), n=64, k=64)
    impl = NativeLinear(layer.spec)
    state, x = impl.pack(layer.operands), rows(2, 64, torch.bfloat16, 0)
    once = impl.apply(x, state)
    state["global_scale"] /= 2
    assert torch.equal(impl.apply(x, state), once * 2)
    state["scale"] = torch.zeros_like(state["scale"])
    assert not impl.apply(x, state).any()


@pytest.mark.parametrize("with_bias", [False, True])
def test_layers_on_top_of_each_other(with_bias: bool, layers: Any) -> None:
    args = QuantArgs(num_bits=4, group_size=32, symmetric=False)
    made = [layers.make(args, n=n, k=96, bias=with_bias and n == 128, seed=n) for n in (64, 128, 40)]
    for layer in made:
        layer.operands.extra["weight_shape"] = torch.tensor([layer.spec.n, 96])
    impls = [NativeLinear(layer.spec) for layer in made]
    states = [impl.pack(layer.operands) for impl, layer in zip(impls, made, strict=True)]
    stacked = impls[0].stack(list(zip(impls, states, strict=True)))
    assert stacked is not None
    whole, state, parts = stacked
    for m in (1, 30):
        x = rows(m, 96, torch.bfloat16, m)
        apart = [impl.apply(x, state) for impl, state in zip(impls, states, strict=True)]
        assert torch.equal(whole.apply(x, state), torch.cat(apart, dim=1))
        assert all(torch.equal(impl.apply(x, part), y) for impl, part, y in zip(impls, parts, apart, strict=True))
    for layer, impl, part in zip(made, impls, parts, strict=True):
        assert layers.same(impl.unpack(part), layer.operands)
        assert part["packed"].data_ptr() != 0 and part["packed"]._base is not None
    uneven = [impls[2], impls[0]]
    assert impls[0].stack(list(zip(uneven, [states[2], states[0]], strict=True))) is None


def test_values_that_a_format_does_not_have_are_refused(layers: Any) -> None:
    layer = layers.make(floats(num_bits=4, **MX), n=32, k=64)
    layer.operands.codes = torch.full((32, 64), 5.0).to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="4-bit float"):
        NativeLinear(layer.spec).pack(layer.operands)


def test_a_weight_of_no_known_layout_is_refused() -> None:
    x, packed, scale = torch.randn(2, 32), torch.zeros(16, 4, dtype=torch.int32), torch.ones(16)
    for numbers in ((16, 32, 32, 1, 0, 6, 2), (16, 32, 16, 1, 0, 4, 2), (16, 32, 32, 1, 7, 4, 2)):
        with pytest.raises(QuantDispatchError, match="no known layout"):
            product.multiply(x, packed, scale, None, None, None, None, numbers, 1.0, False)


def test_opcheck(layers: Any) -> None:
    layer = layers.make(QuantArgs(num_bits=4, group_size=32, symmetric=False), n=48, k=64, bias=True)
    impl = NativeLinear(layer.spec)
    state = impl.pack(layer.operands)
    numbers = [48, 64, 32, 2, product.INT, 4, product.SCALES[state["scale"].dtype]]
    tensors = (state["packed"], state["scale"], state["zero"], None, state["addend"], None)
    for x in (torch.randn(3, 64).bfloat16(), torch.randn(2, 3, 64).bfloat16()):
        for wide in (False, True):
            torch.library.opcheck(product.native_mm, (x, *tensors, numbers, 1.0, wide))
