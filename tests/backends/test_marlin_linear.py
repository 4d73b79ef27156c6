"""Marlin's kernels on stand-in ops that compute from the layout: every kind of weight, against float64."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import marlin_providers
import pytest
import torch

from quantdispatch import QuantDispatchError
from quantdispatch.backends.marlin import linear, providers
from quantdispatch.registry.args import QuantArgs


def _group(size: int, bits: int = 4, **fields: Any) -> QuantArgs:
    return QuantArgs(num_bits=bits, type="int", strategy="group", group_size=size, **fields)


def _float(bits: int, strategy: str, **fields: Any) -> QuantArgs:
    return QuantArgs(num_bits=bits, type="float", strategy=strategy, **fields)


NV = _float(4, "tensor_group", group_size=16)
MX4, MX8 = _float(4, "group", group_size=32), _float(8, "group", group_size=32, scale_dtype="uint8")
KINDS = {
    **{f"int{b} g{g}": _group(g, b) for b in (4, 8) for g in (32, 64, 128)},
    **{f"int4 g{g} asym": _group(g, symmetric=False) for g in (32, 64, 128)},
    **{f"int{b} channel": QuantArgs(num_bits=b, type="int", strategy="channel") for b in (4, 8)},
    "int4 channel asym": QuantArgs(num_bits=4, type="int", strategy="channel", symmetric=False),
    "int8 tensor": QuantArgs(num_bits=8, type="int", strategy="tensor"),
    "int4 ordered": _group(32, actorder="group"),
    "int8 ordered": _group(64, 8, actorder="group"),
    "fp8 tensor": _float(8, "tensor"),
    "fp8 channel": _float(8, "channel"),
    "fp8 g128": _float(8, "group", group_size=128),
    "fp8 block": _float(8, "block", block_structure=[128, 128]),
    "fp8 low block": _float(8, "block", block_structure=[48, 128]),
    "nvfp4": NV,
    "mxfp4": MX4,
    "mxfp8": MX8,
}
#: exponents as scales have kernels for bf16 only
BF16_ONLY = {"mxfp4": ("float16",), "mxfp8": ("float16",)}
DTYPES = {"bfloat16": 4e-3, "float16": 2e-3}


@pytest.fixture(params=marlin_providers.PROVIDERS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A kernel's class on one provider's stand-in ops."""
    return on_stand_in(monkeypatch, request.param)


def on_stand_in(monkeypatch: pytest.MonkeyPatch, provider: str) -> Any:
    adapter = marlin_providers.made(provider)
    for module in (linear, providers):
        monkeypatch.setattr(module, "adapter", lambda name: adapter)
    return linear.SglangMarlinLinear if provider == "sglang" else linear.VllmMarlinLinear


def shape_of(args: QuantArgs, seed: int) -> tuple[int, int]:
    """N and K of which the tiles are seldom multiples; K is whole groups."""
    unit = args.group_size or (1 if args.type == "int" else 16)
    rng = torch.Generator().manual_seed(seed)
    n, k = (int(torch.randint(1, limit, (1,), generator=rng)) for limit in (200, 260))
    return n, -(-k // unit) * unit


@pytest.mark.parametrize(("kind", "dtype"), [(k, d) for k in KINDS for d in DTYPES if d not in BF16_ONLY.get(k, ())])
def test_products_and_state(kernel: Any, layers: SimpleNamespace, kind: str, dtype: str) -> None:
    args = KINDS[kind]
    for seed in range(3):
        n, k = shape_of(args, seed)
        layer = layers.make(
            args,
            n=n,
            k=k,
            dtype=dtype,
            bias=seed > 0,
            seed=seed,
            scale_dtype=getattr(torch, dtype if seed else "float32"),
        )
        impl = pickle.loads(pickle.dumps(copy.deepcopy(kernel(layer.spec))))
        state = impl.pack(layer.operands)
        assert layers.same(impl.unpack(state), layer.operands)
        for rows in (1, 3):
            x = torch.randn(rows, k, generator=torch.Generator().manual_seed(rows)).to(getattr(torch, dtype))
            y = impl.apply(x.unsqueeze(0), state)
            assert y.shape == (1, rows, n) and y.dtype == x.dtype
            assert layers.error(y[0], layer.output(x)) < DTYPES[dtype]
    assert impl.apply(x[:0], state).shape == (0, n)


def test_one_wrong_place_is_seen(monkeypatch: pytest.MonkeyPatch, layers: SimpleNamespace) -> None:
    """What the other tests rest on: the stand-ins read the layout, so a layout that is wrong gives wrong products."""
    kernel = on_stand_in(monkeypatch, "vllm 0.32")
    layer = layers.make(KINDS["int4 g32 asym"], n=128, k=128)
    impl, x = kernel(layer.spec), torch.randn(2, 128).bfloat16()
    right = impl.pack(layer.operands)
    assert layers.error(impl.apply(x, right), layer.output(x)) < 4e-3
    for name in ("codes", "scales", "zeros"):
        wrong = {**right, name: right[name].roll(1, -1).contiguous()}
        assert layers.error(impl.apply(x, wrong), layer.output(x)) > 0.05, name


def test_unequal_groups_of_columns(kernel: Any, layers: SimpleNamespace) -> None:
    """An activation order whose groups have other sizes than the scheme says: one too large, one empty."""
    layer = layers.make(KINDS["int4 ordered"], n=70, k=128)
    layer.operands.g_idx = torch.tensor([0] * 50 + [1] * 20 + [3] * 58, dtype=torch.int32)[torch.randperm(128)]
    impl, x = kernel(layer.spec), torch.randn(5, 128).bfloat16()
    state = impl.pack(layer.operands)
    assert layers.same(impl.unpack(state), layer.operands)
    assert layers.error(impl.apply(x, state), layer.output(x)) < 4e-3


def test_scales_that_the_layout_cannot_hold(kernel: Any, layers: SimpleNamespace) -> None:
    nv = layers.make(NV, n=64, k=64)
    scales = torch.full((64, 4), 2.0**-9)
    scales[0, 0] = 448.0
    nv.operands.scale = scales.to(torch.float8_e4m3fn)
    with pytest.raises(QuantDispatchError, match="so small beside the largest"):
        kernel(nv.spec).pack(nv.operands)
    # the same below codes of zero lose nothing
    nv.operands.codes[:, 16:] = torch.zeros(64, 48).to(torch.float8_e4m3fn)
    nv.operands.codes[1:] = torch.zeros(63, 64).to(torch.float8_e4m3fn)
    impl = kernel(nv.spec)
    assert layers.same(impl.unpack(impl.pack(nv.operands)), nv.operands)
    fp8 = layers.make(KINDS["fp8 channel"], n=64, k=64)
    fp8.operands.scale[3] = 2.0**9
    with pytest.raises(QuantDispatchError, match="is infinite for these"):
        kernel(fp8.spec).pack(fp8.operands)
    fp8.operands.codes[0, 0] = float("nan")
    with pytest.raises(QuantDispatchError, match="NaN"):
        kernel(fp8.spec).pack(fp8.operands)


@pytest.mark.parametrize("scale", [1e-4, 3e-3, 448.0])
def test_nvfp4_scales_of_any_size(kernel: Any, layers: SimpleNamespace, scale: float) -> None:
    """Checkpoints whose scales do not use the whole range of e4m3: they are made larger, and the factor smaller."""
    layer = layers.make(NV, n=80, k=96, seed=3)
    values = (torch.rand(80, 6) * 0.9 + 0.1) * max(scale, 2.0**-9)
    layer.operands.scale = values.to(torch.float8_e4m3fn)
    layer.operands.global_scale = torch.tensor([1234.5])
    impl, x = kernel(layer.spec), torch.randn(4, 96).bfloat16()
    state = impl.pack(layer.operands)
    assert layers.same(impl.unpack(state), layer.operands)
    assert layers.error(impl.apply(x, state), layer.output(x)) < 4e-3


def test_guards(kernel: Any, layers: SimpleNamespace) -> None:
    layer = layers.make(KINDS["int4 g32"], n=64, k=64)
    impl = kernel(layer.spec)
    state = impl.pack(layer.operands)
    for wrong in (torch.ones(2, 32).bfloat16(), torch.ones(2, 64), torch.ones(2, 64, device="meta").bfloat16()):
        with pytest.raises(QuantDispatchError, match="does not fit the kernel"):
            impl.apply(wrong, state)
    with pytest.raises(QuantDispatchError, match="no gradient"):
        impl.apply(torch.ones(1, 64).bfloat16().requires_grad_(), state)
    odd = torch.randn(64, 3).bfloat16().t()
    assert torch.equal(impl.apply(odd, state), impl.apply(odd.contiguous(), state))


@pytest.mark.parametrize(
    "args", [_group(16, 8, symmetric=False), QuantArgs(num_bits=3, type="int", strategy="channel")]
)
def test_weights_without_a_form(kernel: Any, layers: SimpleNamespace, args: QuantArgs) -> None:
    with pytest.raises(QuantDispatchError, match="Marlin has no kernel"):
        kernel(layers.spec(args))


def test_compiled(monkeypatch: pytest.MonkeyPatch, layers: SimpleNamespace) -> None:
    kernel = on_stand_in(monkeypatch, "vllm 0.32")
    adapter = providers.adapter("vllm")
    monkeypatch.setattr("quantdispatch.backends.marlin.op.adapter", lambda name: adapter)
    layer = layers.make(KINDS["int4 g64 asym"], n=70, k=64, bias=True)
    impl, x = kernel(layer.spec), torch.randn(3, 64).bfloat16()
    state = impl.pack(layer.operands)
    compiled = torch.compile(lambda v: impl.apply(v, state) * 2, backend="eager", fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(x), impl.apply(x, state) * 2)
