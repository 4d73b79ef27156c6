"""The native linear for quantized activations: codes to the bit, integers exactly, any shape, every instruction set."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantdispatch.backends.cpu.native import int8_records, library
from quantdispatch.numerics.activations import quantize_int, quantize_outputs
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.environment import native_library
from quantdispatch.registry.errors import QuantDispatchError
from quantdispatch.registry.kernels import run_probe
from quantdispatch.registry.operands import Operands

if native_library() is None:
    pytest.skip("the package was built without a C++ compiler", allow_module_level=True)

from quantdispatch.backends.cpu.native.int8 import NativeInt8Linear

KERNEL = next(kernel for kernel in int8_records.kernels() if kernel.name == "cpu/native_int8")
ISAS = library.ISAS[: library.ISAS.index(library.best_isa()) + 1]
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
#: spacing of the numbers of a dtype, relative
ULP = {"bfloat16": 2**-7, "float16": 2**-10, "float32": 2**-23}
MODES = {
    "token": {"strategy": "token", "dynamic": True},
    "tensor": {"strategy": "tensor", "dynamic": True},
    "static": {"strategy": "tensor"},
}


@pytest.fixture(params=ISAS)
def isa(request):
    before = library.isa()
    library.set_isa(request.param)
    yield request.param
    library.set_isa(before)


def bound(layer):
    impl = NativeInt8Linear(layer.spec)
    return impl, impl.pack(layer.operands)


def seen(x, layer):
    """Codes less their zero point and their scale, both float64."""
    o = layer.operands
    q, scale, zero = quantize_int(x, layer.spec.inputs, o.input_scale, o.input_zero_point)
    return q.double() - (0 if zero is None else zero.double()), scale.double()


def assert_right(impl, state, layer, x):
    y = impl.apply(x, state)
    q, scale = seen(x, layer)
    bias = 0 if layer.operands.bias is None else layer.operands.bias.double()
    weight = layer.weight()
    exact = q @ weight.T * scale + bias
    most = q.abs() @ weight.T.abs() * scale + abs(bias)
    assert y.dtype == x.dtype and y.shape == exact.shape
    tiny = 6e-8 if x.dtype == torch.float16 else 0
    off = (y.double() - exact).abs() - (exact.abs() * ULP[layer.spec.dtype] / 2 + most * 5e-7 + tiny)
    assert off.max() <= 0, f"off by {off.max()}"


def test_probe():
    assert run_probe(KERNEL.probe) is None


# --- quantization ---


def diagonal(layers, k, args, dtype, **inputs):
    """A layer that gives back what it multiplies: y = scale * (code - zero point), rounded once in fp32."""
    layer = layers.make(QuantArgs(group_size=-1), args, n=k, k=k, dtype=dtype, scale_dtype=torch.float32)
    layer.operands = Operands(torch.eye(k, dtype=torch.int8), torch.ones(k, 1), **inputs)
    return layer


SPECIAL = [0.0, -0.0, 1e-45, -1e-40, 1e-38, 3e38, -3e38, 0.5, 1.5, 2.5, -0.5, -1.5, 127.5, -128.5, 1e30]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_codes_are_those_of_numerics(mode, symmetric, dtype, isa, layers):
    generator = torch.Generator().manual_seed(1)
    for bits in range(2, 9):
        k = 40 + bits  # tails of every length
        args = QuantArgs(num_bits=bits, symmetric=symmetric, **MODES[mode])
        stored = {}
        if mode == "static":
            stored = {"input_scale": torch.tensor([0.031])}
            if not symmetric:
                stored["input_zero_point"] = torch.tensor([bits - 6 if bits > 3 else -1], dtype=torch.int8)
        layer = diagonal(layers, k, args, dtype, **stored)
        impl, state = bound(layer)
        rows = [torch.randn(k, generator=generator) * 10.0**e for e in (-38, -20, -3, 0, 3, 30)]
        rows += [row.abs() for row in rows] + [-row.abs() for row in rows] + [torch.zeros(k)]
        rows += [torch.tensor(SPECIAL + [0.0] * (k - len(SPECIAL)))]
        rows += [
            torch.arange(k) % 16 * 0.5 - 4,
            (torch.arange(k) % 8 * 0.5 - 2).index_fill(0, torch.tensor([0]), 127.0),
        ]
        for x in (torch.stack(rows[:-3]), *(row[None] for row in rows), torch.stack(rows[3:5])):
            x = x.to(DTYPES[dtype])
            if not x.isfinite().all():
                continue  # fp16's range; below
            q, scale, zero = quantize_int(x, args, *stored.values())
            values = q.float() - (0 if zero is None else zero.float())
            want = (values * scale).to(x.dtype)
            y = impl.apply(x, state)
            if not scale.isfinite().all():  # the range of a row is more than fp32 holds
                assert y[~scale.isfinite().expand_as(y)].isnan().all()
                want = torch.where(scale.isfinite(), want, y)
            assert torch.equal(y.nan_to_num(7), want.nan_to_num(7))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bits", [4, 8])
def test_no_number_makes_a_number_of_nothing(bits, mode, symmetric, isa, layers):
    layer = layers.make(
        QuantArgs(num_bits=bits, group_size=32), QuantArgs(symmetric=symmetric, **MODES[mode]), n=40, k=96,
        dtype="float32", scale_dtype=torch.float32,
    )  # fmt: skip
    impl, state = bound(layer)
    for m in (1, 3, 9):
        for value in (float("nan"), float("inf"), -float("inf")):
            for column in (0, 50, 95):
                x = torch.randn(m, 96, generator=torch.Generator().manual_seed(m))
                x[m // 2, column] = value
                y = impl.apply(x, state)
                if mode == "static" and value == value:  # saturates
                    assert_right(impl, state, layer, x)
                    continue
                gone = y.isnan().all(1)
                assert gone[m // 2] and not y.isinf().any()
                others = [i for i in range(m) if i != m // 2]
                if mode == "tensor":
                    assert gone.all()
                elif others:
                    assert torch.equal(y[others], impl.apply(x[others], state))


# --- products ---


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("m", [1, 2, 5, 6, 13])
def test_extreme_codes_are_summed_exactly(bits, m, isa, layers):
    """What saturates in 16 bits would show here."""
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    for k in (64, 100, 4096):
        args = QuantArgs(num_bits=bits, group_size=-1)
        layer = layers.make(args, QuantArgs(strategy="tensor"), n=80, k=k, dtype="float32")
        codes = torch.full((80, k), high, dtype=torch.int8)
        codes[::3] = low
        codes[1::3, ::2] = low
        layer.operands = Operands(codes, torch.ones(80, 1), input_scale=torch.ones(1))
        impl, state = bound(layer)
        for value in (-128.0, 127.0):
            x = torch.full((m, k), value)
            x[m // 2, 1::2] = -1 - value
            assert torch.equal(impl.apply(x, state), (x.double() @ codes.double().T).float())


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [8, 4])
def test_the_longest_rows_do_not_overflow(bits, symmetric, isa, layers):
    k, low = 131072, -(1 << (bits - 1))
    weights = QuantArgs(num_bits=bits, group_size=-1, symmetric=False)
    layer = layers.make(weights, QuantArgs(strategy="tensor", symmetric=symmetric), n=16, k=k, dtype="float32")
    zero = None if symmetric else torch.tensor([127], dtype=torch.int8)
    layer.operands = Operands(
        torch.full((16, k), low, dtype=torch.int8), torch.ones(16, 1), torch.full((16, 1), -1 - low, dtype=torch.int8),
        input_scale=torch.ones(1), input_zero_point=zero,
    )  # fmt: skip
    impl, state = bound(layer)
    for m in (1, 2):
        x = torch.full((m, k), -300.0)  # all -128
        factor = -128 if symmetric else -255
        assert torch.equal(impl.apply(x, state), torch.full((m, 16), float(k * factor * (2 * low + 1))))


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_any_layer(layers, data):
    draw = data.draw
    bits, seed = draw(st.integers(1, 8)), draw(st.integers(0, 1 << 16))
    n, m = draw(st.integers(1, 140)), draw(st.sampled_from([1, 1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 31, 260]))
    symmetric = draw(st.booleans())
    strategy = draw(st.sampled_from(["tensor", "channel", "group", "ordered", "block"]))
    plain = {"num_bits": bits, "symmetric": symmetric}
    if strategy in ("group", "ordered"):
        group = draw(st.integers(1, 70))
        k = group * draw(st.integers(1, 8))
        order = "group" if strategy == "ordered" else None
        weights = QuantArgs(strategy="group", group_size=group, actorder=order, **plain)
    else:
        k = draw(st.integers(1, 400))
        block = [draw(st.integers(1, 40)), draw(st.integers(1, 90))] if strategy == "block" else None
        weights = QuantArgs(strategy=strategy, block_structure=block, **plain)
    inputs = QuantArgs(symmetric=draw(st.booleans()), **MODES[draw(st.sampled_from(list(MODES)))])
    dtype, scale_dtype = draw(st.sampled_from(list(DTYPES))), DTYPES[draw(st.sampled_from(list(DTYPES)))]
    layer = layers.make(
        weights, inputs, n=n, k=k, dtype=dtype, scale_dtype=scale_dtype, bias=draw(st.booleans()), seed=seed,
    )  # fmt: skip
    impl, state = bound(layer)
    x = torch.randn(m, k, generator=torch.Generator().manual_seed(seed)).to(DTYPES[dtype])
    before = library.isa()
    try:
        for name in ISAS:
            library.set_isa(name)
            assert_right(impl, state, layer, x)
    finally:
        library.set_isa(before)


@pytest.mark.parametrize("outputs", [QuantArgs(strategy="tensor"), QuantArgs(strategy="tensor", symmetric=False)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_outputs_are_quantized_before_they_are_rounded(dtype, outputs, isa, layers):
    inputs = QuantArgs(strategy="tensor", symmetric=outputs.symmetric)
    layer = layers.make(
        QuantArgs(num_bits=4, group_size=32), inputs, outputs=outputs, n=50, k=96, dtype=dtype, bias=True,
        scale_dtype=torch.float32,
    )  # fmt: skip
    impl, state = bound(layer)
    x = torch.randn(7, 96, generator=torch.Generator().manual_seed(0)).to(DTYPES[dtype])
    q, scale = seen(x, layer)
    o = layer.operands
    exact = q @ layer.weight().T * scale + o.bias.double()
    want = quantize_outputs(exact, outputs, o.output_scale, o.output_zero_point)
    y = impl.apply(x, state).double()
    # a sum that is a tie but for fp32's rounding may fall to the other side
    near = ((exact / o.output_scale.double()).frac().abs() - 0.5).abs() < 1e-4
    wrong = (y - want).abs() > want.abs() * ULP[dtype]
    assert not (wrong & ~near).any() and near.float().mean() < 0.1


# --- how it is called ---


def test_results_depend_on_neither_threads_nor_neighbours(isa, layers):
    layer = layers.make(QuantArgs(num_bits=4, group_size=32), QuantArgs(**MODES["token"]), n=300, k=512)
    impl, state = bound(layer)
    x = torch.randn(70, 512, generator=torch.Generator().manual_seed(0)).bfloat16()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = impl.apply(x, state)
        torch.set_num_threads(2)
        assert torch.equal(impl.apply(x, state), alone)
    finally:
        torch.set_num_threads(before)
    for i in (0, 33, 69):
        assert torch.equal(impl.apply(x[i : i + 1], state), alone[i : i + 1])


def test_views_and_shapes(layers):
    layer = layers.make(QuantArgs(group_size=-1), QuantArgs(symmetric=False, **MODES["token"]), n=33, k=80, bias=True)
    impl, state = bound(layer)
    wide = torch.randn(2, 3, 160, generator=torch.Generator().manual_seed(0)).bfloat16()
    x = wide[..., :80]
    flat = impl.apply(x.reshape(6, 80).contiguous(), state)
    assert torch.equal(impl.apply(x, state), flat.view(2, 3, 33))
    assert torch.equal(impl.apply(wide.view(6, 160)[:, :80], state), flat)
    assert torch.equal(impl.apply(x[0, 0], state), flat[0])
    assert torch.equal(impl.apply(x.transpose(0, 1), state), flat.view(2, 3, 33).transpose(0, 1))
    assert impl.apply(x[:0], state).shape == (0, 3, 33)
    expanded = x[0, :1].expand(4, 80)
    assert torch.equal(impl.apply(expanded, state), flat[:1].expand(4, 33))


def test_state_gives_back_the_operands(layers):
    for weights in (
        QuantArgs(group_size=-1),
        QuantArgs(num_bits=4, group_size=32, symmetric=False, actorder="group"),
        QuantArgs(num_bits=5, strategy="block", block_structure=[16, 24], symmetric=False),
    ):
        layer = layers.make(weights, QuantArgs(symmetric=False, strategy="tensor"), n=40, k=96, bias=True)
        impl, state = bound(layer)
        assert layers.same(impl.unpack(state), layer.operands)
        x = torch.randn(2, 96).bfloat16()
        for twin in (copy.deepcopy(impl), pickle.loads(pickle.dumps(impl))):
            assert torch.equal(twin.apply(x, state), impl.apply(x, state))


def test_layers_of_one_input_are_one_product(layers):
    inputs = QuantArgs(**MODES["token"])
    parts = [
        layers.make(QuantArgs(num_bits=4, group_size=32), inputs, n=n, k=96, bias=n == 64, seed=n)
        for n in (128, 64, 40)
    ]
    alone = [bound(layer) for layer in parts]
    impl, state, views = alone[0][0].stack(alone)
    assert isinstance(impl, NativeInt8Linear)
    x = torch.randn(5, 96, generator=torch.Generator().manual_seed(0)).bfloat16()
    separate = [own.apply(x, tensors) for own, tensors in alone]
    assert torch.equal(impl.apply(x, state), torch.cat(separate, -1))
    for (own, _), view, y in zip(alone, views, separate, strict=True):
        assert torch.equal(own.apply(x, view), y)


@pytest.mark.parametrize("mode", MODES)
def test_one_graph_without_breaks(mode, layers):
    layer = layers.make(QuantArgs(num_bits=4, group_size=32), QuantArgs(symmetric=False, **MODES[mode]), n=40, k=64)
    impl, state = bound(layer)
    compiled = torch.compile(lambda x: impl.apply(x * 2, state) + 1, fullgraph=True, backend="aot_eager", dynamic=True)
    for m in (1, 5):
        x = torch.randn(2, m, 64, generator=torch.Generator().manual_seed(m)).bfloat16()
        assert torch.equal(compiled(x), impl.apply(x * 2, state) + 1)


def test_what_does_not_fit_is_refused(layers):
    layer = layers.make(QuantArgs(group_size=-1), QuantArgs(**MODES["token"]), n=33, k=80)
    impl, state = bound(layer)
    for x in (torch.zeros(2, 80), torch.zeros(2, 81, dtype=torch.bfloat16)):
        with pytest.raises(QuantDispatchError, match="does not fit"):
            impl.apply(x, state)
    with pytest.raises(QuantDispatchError, match="no gradient"):
        impl.apply(torch.zeros(2, 80, dtype=torch.bfloat16, requires_grad=True), state)
    static = layers.make(QuantArgs(group_size=-1), QuantArgs(strategy="tensor", symmetric=False), n=33, k=80)
    impl, state = bound(static)
    for name in ("input_scale", "input_zero_point"):
        with pytest.raises(ValueError, match=name):
            impl.apply(torch.zeros(2, 80, dtype=torch.bfloat16), {k: v for k, v in state.items() if k != name})
    with pytest.raises(QuantDispatchError, match="refused"):
        impl.apply(torch.zeros(2, 80, dtype=torch.bfloat16), state | {"input_zero_point": torch.tensor([200])})
