"""Whatever a record admits, its kernel computes: generated layers over all legal args, against float64."""

from __future__ import annotations

import copy
import itertools
import pickle

import pytest
import torch

from quantdispatch.backends.cpu import kernels
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.environment import Environment
from quantdispatch.registry.kernels import run_probe, select
from quantdispatch.registry.lazy import load_target

#: of all of them; small floats are held against the reference in test_cpu_against_reference.py
EVERY = {kernel.name: kernel for kernel in kernels() if kernel.op == "linear"}
KERNELS = {name: kernel for name, kernel in EVERY.items() if name != "cpu/microfloat"}
# as on a processor with VNNI and with a compiler: a kernel that does not run on the one at hand is skipped by its probe
FACTS = Environment.detect("cpu", {"isa.avx512_vnni": True, "quantdispatch-native": "1"}).facts
TORCH_FACTS = Environment.detect("cpu", {"isa.avx512_vnni": True, "quantdispatch-native": None}).facts
# Relative RMS error. Rounding the result costs 1.7e-3 in bf16 and 2e-4 in fp16; where an op returns bf16 that is scaled
# or biased afterwards it is rounded twice (2.4e-3, a little more where few numbers are compared); the int4 op takes
# scales and zeros in bf16 (up to 2e-3 for those that are wider).
TOLERANCE = {"bfloat16": 3.5e-3, "float16": 4e-4, "float32": 1e-5}
INT4_TOLERANCE = 4.5e-3


def weights() -> list[QuantArgs]:
    found = []
    for bits, symmetric in itertools.product(range(2, 9), (True, False)):
        plain = {"num_bits": bits, "symmetric": symmetric}
        found += [QuantArgs(strategy=s, **plain) for s in ("tensor", "channel")]
        found += [QuantArgs(strategy="group", group_size=g, **plain) for g in (16, 32, 96, 128)]
        found += [QuantArgs(strategy="group", group_size=32, actorder=a, **plain) for a in ("group", "weight")]
    found += [QuantArgs(type="float", strategy=s) for s in ("tensor", "channel")]
    found += [QuantArgs(type="float", strategy="block", block_structure=b) for b in ((128, 128), (16, 24))]
    return found


def inputs(kind: str) -> list[QuantArgs | None]:
    symmetric = (True, False) if kind == "int" else (True,)
    found: list[QuantArgs | None] = [None]
    for s in symmetric:
        found.append(QuantArgs(type=kind, symmetric=s, strategy="token", dynamic=True))
        found += [QuantArgs(type=kind, symmetric=s, strategy="tensor", dynamic=d) for d in (True, False)]
    if kind == "float":
        found.append(QuantArgs(type="float", strategy="group", group_size=128, dynamic=True))
    return found


def shapes(args: QuantArgs) -> list[tuple[int, int]]:
    if args.strategy == "group":
        return [(48, 384), (19, args.group_size * 3)]
    return [(48, 96), (33, 80), (7, 37)] if args.type == "int" else [(40, 200), (7, 37)]


CASES = [(w, i, shape) for w in weights() for i in inputs(w.type) for shape in shapes(w)]


def admitted(spec, facts=FACTS) -> list[str]:
    return [name for name, kernel in KERNELS.items() if kernel.predicate.test({**spec.flat, **facts}).status == "yes"]


def runnable(name: str) -> bool:
    probe = EVERY[name].probe
    return probe is None or run_probe(probe) is None


# what deviates from the scheme is compared in tests/engines/test_allow.py
@pytest.mark.parametrize("name", [name for name, kernel in KERNELS.items() if not kernel.deviations])
def test_what_is_admitted_is_computed(name, layers):
    if not runnable(name):
        pytest.skip(f"{name} does not run here: {run_probe(KERNELS[name].probe)}")
    tried = 0
    for number, (w, i, (n, k)) in enumerate(CASES):
        # every dtype, scale dtype and bias meets every kind of layer without multiplying the cases
        dtype = ("bfloat16", "bfloat16", "float16", "float32")[number % 4]
        scale_dtype = (torch.bfloat16, torch.float32, torch.float16)[number % 3]
        if name not in admitted(layers.spec(w, i, n=n, k=k, dtype=dtype)):
            continue
        if name in ("cpu/dequant", "cpu/native", "cpu/native_int8") and number % 3:
            continue  # they admit nearly everything; a third still meets every field's every value
        layer = layers.make(w, i, n=n, k=k, dtype=dtype, scale_dtype=scale_dtype, bias=number % 2 == 0, seed=number)
        tried += 1
        where = f"{w.describe()} x {i.describe() if i else dtype}, N={n}, K={k}, {dtype}, {scale_dtype}"
        impl = load_target(KERNELS[name].target)(layer.spec)
        state = impl.pack(layer.operands)
        assert layers.same(impl.unpack(state), layer.operands), f"unpack is lossy: {where}"
        for rows in (1, 3, 70) if number % 5 == 0 else (1, 9):
            x = torch.randn(rows, k, generator=torch.Generator().manual_seed(rows)).to(getattr(torch, dtype))
            x[-1] *= 3
            y = impl.apply(x, state)
            assert y.dtype == x.dtype and y.shape == (rows, n)
            limit = INT4_TOLERANCE if name == "cpu/int4_torch" else TOLERANCE[dtype]
            # a result of one or few numbers has no RMS to speak of: compare with the rounding of the worst one
            limit *= 3 if n * rows < 64 else 1
            exact = layer.output(x)
            assert layers.error(y, exact) < limit, f"error {layers.error(y, exact):.2e}: {where}, M={rows}"
    assert tried > 10


def test_every_case_has_a_kernel(layers):
    for w, i, (n, k) in CASES:
        assert "cpu/dequant" in admitted(layers.spec(w, i, n=n, k=k)), (w, i)


@pytest.mark.parametrize(
    ("w", "i", "n", "k", "dtype", "first"),
    [
        (dict(num_bits=4, group_size=128), None, 64, 256, "bfloat16", "cpu/int4_torch"),
        (dict(num_bits=4, group_size=128, symmetric=False), None, 64, 256, "bfloat16", "cpu/int4_torch"),
        (dict(num_bits=4, group_size=128, actorder="group"), None, 64, 256, "bfloat16", "cpu/int4_torch"),
        (dict(num_bits=3, group_size=-1), None, 64, 96, "bfloat16", "cpu/int4_torch"),
        (dict(num_bits=4, group_size=16), None, 64, 256, "bfloat16", "cpu/dequant"),
        (dict(num_bits=4, group_size=128), None, 64, 256, "float16", "cpu/dequant"),
        (dict(num_bits=4, group_size=128), None, 60, 256, "bfloat16", "cpu/dequant"),
        (dict(num_bits=5, group_size=128), None, 64, 256, "bfloat16", "cpu/dequant"),
        (dict(num_bits=8, group_size=-1), None, 64, 256, "bfloat16", "cpu/int8_torch"),
        (dict(num_bits=4, group_size=-1), None, 60, 256, "bfloat16", "cpu/int8_torch"),
        (dict(num_bits=7, group_size=-1, symmetric=False), None, 64, 256, "bfloat16", "cpu/int8_torch"),
        (dict(num_bits=8, group_size=-1, symmetric=False), None, 64, 256, "bfloat16", "cpu/dequant"),
        (dict(num_bits=8, group_size=-1), None, 64, 250, "bfloat16", "cpu/dequant"),
        (dict(num_bits=8, group_size=-1), dict(strategy="token", dynamic=True), 9, 37, "float32", "cpu/w8a8_onednn"),
        (dict(num_bits=4, group_size=-1), dict(strategy="token", dynamic=True), 64, 256, "bfloat16", "cpu/int4_torch"),
        (dict(num_bits=8, group_size=32), dict(strategy="token", dynamic=True), 64, 256, "bfloat16", "cpu/dequant"),
        (dict(type="float", strategy="channel"), None, 64, 256, "bfloat16", "cpu/dequant"),
    ],
)
def test_first_choice(w, i, n, k, dtype, first, layers):
    """Without the native kernels ``first``; with them those, whatever the shape."""
    layer = layers.make(QuantArgs(**w), i and QuantArgs(**i), n=n, k=k, dtype=dtype)
    for facts, expected in ((TORCH_FACTS, first), (FACTS, "cpu/native_int8" if i else "cpu/native")):
        names = admitted(layer.spec, facts)
        assert max(names, key=lambda name: KERNELS[name].rank) == expected
        assert expected == names[0]


@pytest.mark.parametrize(
    ("assumed", "first"),
    [
        ({}, "cpu/w8a8_torch"),
        ({"isa.avx512_vnni": True}, "cpu/w8a8_onednn"),
        ({"isa.avx_vnni": True}, "cpu/w8a8_onednn"),
        ({"isa.amx_int8": True}, "cpu/w8a8_onednn"),
    ],
)
def test_a_plan_knows_without_probing_which_int8_product_is_exact(assumed, first, layers):
    none = dict.fromkeys(("isa.avx512_vnni", "isa.avx_vnni", "isa.amx_int8", "quantdispatch-native"), False)
    facts = Environment.detect("cpu", {**none, **assumed}).facts | {"arch": "x86_64"}
    spec = layers.spec(QuantArgs(strategy="channel"), QuantArgs(strategy="token", dynamic=True), n=64, k=64)
    assert select(spec, facts, kernels()).kernel.name == first


@pytest.mark.parametrize("name", EVERY)
def test_any_leading_dimensions_and_strides(name, layers):
    if not runnable(name):
        pytest.skip(f"{name} does not run here: {run_probe(EVERY[name].probe)}")
    layer = representative(name, layers)
    impl, k = load_target(EVERY[name].target)(layer.spec), layer.spec.k
    state = impl.pack(layer.operands)
    x = torch.randn(2, 5, k).bfloat16()
    whole = impl.apply(x, state)
    assert whole.shape == (2, 5, layer.spec.n)
    rows = impl.apply(x.view(10, k), state).view(2, 5, -1)
    assert torch.equal(whole, rows)
    turned = x.transpose(0, 1)
    assert torch.equal(impl.apply(turned, state), impl.apply(turned.contiguous(), state))
    wide = torch.randn(4, 2 * k).bfloat16()[:, ::2]
    assert torch.equal(impl.apply(wide, state), impl.apply(wide.contiguous(), state))
    assert impl.apply(x[0, 0], state).shape == (layer.spec.n,)
    for empty in ((0, k), (3, 0, k)):
        assert impl.apply(torch.empty(empty, dtype=torch.bfloat16), state).shape == (*empty[:-1], layer.spec.n)
    zeros = impl.apply(torch.zeros(3, k, dtype=torch.bfloat16), state)
    assert torch.equal(zeros, layer.operands.bias.expand(3, -1)), "a row of zeros gives the bias"


def representative(name, layers):
    w = {
        "cpu/int4_torch": QuantArgs(num_bits=4, group_size=32, symmetric=False, actorder="group"),
        "cpu/dequant": QuantArgs(num_bits=3, group_size=16, symmetric=False, actorder="group"),
        "cpu/native": QuantArgs(num_bits=5, group_size=16, symmetric=False, actorder="group"),
        "cpu/w7a8_onednn": QuantArgs(num_bits=7, group_size=-1, symmetric=False),
        "cpu/microfloat": QuantArgs(type="float", num_bits=4, strategy="tensor_group", group_size=16),
    }.get(name, QuantArgs(num_bits=8, group_size=-1))
    quantizes = "a8" in name or name == "cpu/native_int8"
    token = QuantArgs(strategy="token", dynamic=True, symmetric=False) if quantizes else None
    return layers.make(w, token, n=48, k=64, bias=True)


@pytest.mark.parametrize("name", EVERY)
def test_impl_and_state_are_copied_and_pickled(name, layers):
    if not runnable(name):
        pytest.skip(f"{name} does not run here: {run_probe(EVERY[name].probe)}")
    layer = representative(name, layers)
    layer.operands.extra["weight_shape"] = torch.tensor([48, 64])
    impl = load_target(EVERY[name].target)(layer.spec)
    state = impl.pack(layer.operands)
    x = torch.randn(70, 64).bfloat16()
    y = impl.apply(x, state)
    for twin, their in (copy.deepcopy((impl, state)), pickle.loads(pickle.dumps((impl, state)))):
        assert torch.equal(twin.apply(x, their), y)
        assert layers.same(twin.unpack(their), layer.operands)


@pytest.mark.parametrize("name", EVERY)
def test_what_it_was_not_bound_for_is_refused(name, layers):
    from quantdispatch.registry.errors import QuantDispatchError

    layer = representative(name, layers)
    impl = load_target(EVERY[name].target)(layer.spec)
    state = impl.pack(layer.operands) if runnable(name) else {}
    x = torch.randn(2, 64).bfloat16()
    for wrong in (x.float(), x[:, :32], x.to("meta")):
        with pytest.raises(QuantDispatchError, match="does not fit"):
            impl.apply(wrong, state)
    with pytest.raises(QuantDispatchError, match="no gradient"):
        impl.apply(x.requires_grad_(), state)
    if state:
        with torch.no_grad():
            assert not impl.apply(x, state).requires_grad
        with torch.inference_mode():
            impl.apply(x, state)
        # a scratch buffer made in inference mode must serve outside of it too
        impl.apply(x.detach(), state)


def test_unequal_groups_under_activation_ordering(layers):
    args = QuantArgs(num_bits=4, group_size=32, symmetric=False, actorder="group")
    layer = layers.make(args, n=32, k=128)
    layer.operands.g_idx = torch.tensor([0] * 50 + [1] * 1 + [3] * 77, dtype=torch.int32)[torch.randperm(128)]
    x = torch.randn(5, 128).bfloat16()
    for name in filter(runnable, ("cpu/int4_torch", "cpu/dequant", "cpu/native")):
        impl = load_target(KERNELS[name].target)(layer.spec)
        state = impl.pack(layer.operands)
        assert layers.same(impl.unpack(state), layer.operands)
        assert layers.error(impl.apply(x, state), layer.output(x)) < INT4_TOLERANCE


def test_zero_points_that_bf16_cannot_tell_are_kept(layers):
    layer = layers.make(QuantArgs(num_bits=4, group_size=32, symmetric=False), n=32, k=64, scale_dtype=torch.float32)
    layer.operands.scale[0, 0] = 1e-45
    impl = load_target(KERNELS["cpu/int4_torch"].target)(layer.spec)
    state = impl.pack(layer.operands)
    assert "zero_point" in state and layers.same(impl.unpack(state), layer.operands)
    layer = layers.make(QuantArgs(num_bits=4, group_size=32, symmetric=False), n=32, k=64)
    assert "zero_point" not in impl.pack(layer.operands)


@pytest.mark.parametrize("name", ["cpu/dequant", "cpu/native"])
def test_nan_weights_stay_nan(name, layers):
    if not runnable(name):
        pytest.skip(f"{name} does not run here: {run_probe(KERNELS[name].probe)}")
    layer = layers.make(QuantArgs(type="float", strategy="channel"), n=40, k=64)
    bits = layer.operands.codes.view(torch.uint8)
    bits[3, 5], bits[17, 0] = 0x7F, 0xFF
    impl = load_target(KERNELS[name].target)(layer.spec)
    state = impl.pack(layer.operands)
    assert layers.same(impl.unpack(state), layer.operands)
    y = impl.apply(torch.zeros(2, 64).bfloat16(), state)
    assert y.isnan().all(0).nonzero().flatten().tolist() == [3, 17] and y.isnan().sum() == 4


def test_bf16_products_of_the_dequantizing_kernel(layers, monkeypatch):
    """The route of processors with bf16 instructions, wherever this runs."""
    monkeypatch.setattr("quantdispatch.backends.cpu.dequant.NATIVE_BF16", True)
    for w, i, (n, k) in CASES[::7]:
        layer = layers.make(w, i, n=n, k=k)
        impl = load_target(KERNELS["cpu/dequant"].target)(layer.spec)
        x = torch.randn(70, k).bfloat16()
        # weights with group scales are rounded to bf16, as compressed-tensors' own decompression rounds them
        assert layers.error(impl.apply(x, impl.pack(layer.operands)), layer.output(x)) < 5e-3, (w, i, n, k)


@pytest.mark.parametrize("native", [True, False])
def test_int8_op_and_decoding_agree(layers, monkeypatch, native):
    monkeypatch.setattr("quantdispatch.backends.cpu.int8.NATIVE_BF16", native)
    layer = layers.make(QuantArgs(num_bits=8, group_size=-1), n=48, k=64, scale_dtype=torch.float32)
    impl = load_target(KERNELS["cpu/int8_torch"].target)(layer.spec)
    x = torch.randn(33, 64).bfloat16()
    assert layers.error(impl.apply(x, impl.pack(layer.operands)), layer.output(x)) < TOLERANCE["bfloat16"]
