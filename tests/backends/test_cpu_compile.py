"""Kernels inside torch.compile, under threads, and as registered operators."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from quantdispatch.backends.cpu import kernels
from quantdispatch.backends.cpu.bitplanes import pack_planes
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.kernels import run_probe
from quantdispatch.registry.lazy import load_target

KERNELS = {kernel.name: kernel for kernel in kernels()}
TOKEN = QuantArgs(strategy="token", dynamic=True)
NV = QuantArgs(type="float", num_bits=4, strategy="tensor_group", group_size=16)
MXFP6 = QuantArgs(type="float", num_bits=6, group_size=32, scale_dtype="uint8")
FP8 = QuantArgs(type="float", strategy="channel")
FP8_TOKEN = QuantArgs(type="float", strategy="token", dynamic=True)
CASES = [
    ("cpu/native", QuantArgs(num_bits=4, group_size=32, symmetric=False), None),
    ("cpu/native", QuantArgs(num_bits=3, group_size=16, actorder="group"), None),
    ("cpu/native", FP8, FP8_TOKEN),
    ("cpu/native", NV, NV.model_copy(update={"dynamic": "local"})),
    ("cpu/native_int8", QuantArgs(num_bits=4, group_size=32, symmetric=False), TOKEN),
    ("cpu/int4_torch", QuantArgs(num_bits=4, group_size=32, symmetric=False), None),
    ("cpu/int4_torch", QuantArgs(num_bits=4, group_size=32, actorder="group"), TOKEN),
    ("cpu/int8_torch", QuantArgs(group_size=-1), None),
    ("cpu/w8a8_onednn", QuantArgs(group_size=-1), TOKEN),
    ("cpu/w7a8_onednn", QuantArgs(num_bits=7, group_size=-1), TOKEN),
    ("cpu/w8a8_torch", QuantArgs(group_size=-1), QuantArgs(strategy="tensor", symmetric=False)),
    ("cpu/dequant", QuantArgs(num_bits=3, group_size=16, symmetric=False, actorder="group"), None),
    (
        "cpu/dequant",
        QuantArgs(type="float", strategy="channel"),
        QuantArgs(type="float", strategy="token", dynamic=True),
    ),
    (
        "cpu/dequant",
        QuantArgs(type="float", strategy="block", block_structure=(16, 32)),
        QuantArgs(type="float", strategy="group", group_size=128, dynamic=True),
    ),
    ("cpu/dequant", QuantArgs(num_bits=4, group_size=16), QuantArgs(strategy="group", group_size=16, dynamic=True)),
    ("cpu/microfloat", NV, None),
    ("cpu/microfloat", NV, NV.model_copy(update={"dynamic": "local"})),
    ("cpu/microfloat", MXFP6, MXFP6.model_copy(update={"dynamic": True, "num_bits": 8})),
]


class Module(torch.nn.Module):
    def __init__(self, impl, operands):
        super().__init__()
        self.impl = impl
        self.names = []
        for name, value in impl.pack(operands).items():
            self.register_buffer(name, value)
            self.names.append(name)

    def forward(self, x):
        return self.impl.apply(x * 2, {name: getattr(self, name) for name in self.names}) + 1


@pytest.mark.parametrize(("name", "w", "i"), CASES)
def test_one_graph_without_breaks(name, w, i, layers):
    if KERNELS[name].probe and run_probe(KERNELS[name].probe):
        pytest.skip(f"{name} does not run here: {run_probe(KERNELS[name].probe)}")
    layer = layers.make(w, i, n=48, k=64, bias=True)
    module = Module(load_target(KERNELS[name].target)(layer.spec), layer.operands)
    torch._dynamo.reset()
    # aot_eager runs everything but code generation: tracing, fake implementations, functionalization
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for rows in (1, 20):
            x = torch.randn(2, rows, 64).bfloat16()
            assert torch.equal(compiled(x), module(x))


def ops():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 40, generator=generator)
    codes = torch.randint(-4, 4, (24, 40), generator=generator, dtype=torch.int8)
    scale, zero = torch.rand(24, 5, generator=generator), torch.randint(-4, 4, (24, 5), dtype=torch.int8)
    columns = (torch.arange(40) // 8).flip(0).to(torch.int32)
    planes = pack_planes(codes, 3)
    return [
        ("chunked_mm", (x, planes, scale, zero, None, 3, 1, 8)),
        ("chunked_mm", (x, planes, scale, None, columns, 3, 1, 8)),
        ("chunked_mm", (x, codes, None, None, None, 8, 1, 40)),
        ("chunked_mm", (x, codes, scale[:2], None, None, 0, 16, 8)),
        ("u8s8_mm", (x.round(), codes)),
    ]


@pytest.mark.parametrize(("name", "args"), ops())
def test_opcheck(name, args):
    torch.library.opcheck(getattr(torch.ops.quantdispatch, name).default, args)


def test_threads_do_not_share_buffers(layers):
    made = [layers.make(QuantArgs(num_bits=5, group_size=16), n=n, k=k) for n, k in ((64, 64), (96, 32), (40, 160))]
    work = []
    for layer in made:
        impl = load_target(KERNELS["cpu/dequant"].target)(layer.spec)
        state, x = impl.pack(layer.operands), torch.randn(5, layer.spec.k).bfloat16()
        work.append((impl, state, x, impl.apply(x, state)))
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda job: (job[3], job[0].apply(job[2], job[1])), work * 40))
    assert all(torch.equal(expected, got) for expected, got in results)


def test_autocast_changes_nothing(layers):
    layer = layers.make(QuantArgs(num_bits=5, group_size=16), n=64, k=64, dtype="float32")
    impl = load_target(KERNELS["cpu/dequant"].target)(layer.spec)
    state, x = impl.pack(layer.operands), torch.randn(5, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(impl.apply(x, state), impl.apply(x, state))
        inside = impl.apply(x, state)
    assert torch.equal(inside, impl.apply(x, state))
