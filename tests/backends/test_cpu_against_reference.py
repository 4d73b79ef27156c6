"""Every scheme's layers, whichever kernel of the CPU takes them, against the scheme's own numerics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from quantdispatch.backends.cpu import kernels
from quantdispatch.backends.reference.linear import ReferenceLinear
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.environment import Environment
from quantdispatch.registry.kernels import run_probe
from quantdispatch.registry.lazy import load_target
from quantdispatch.registry.scheme import LayerShape

KERNELS = [kernel for kernel in kernels() if kernel.op == "linear"]
FACTS = Environment.detect("cpu", {"isa.avx512_vnni": True, "quantdispatch-native": "1"}).facts
#: as in test_cpu_kernels.py, where the reasons stand
TOLERANCE = {"bfloat16": 4.5e-3, "float16": 4e-4, "float32": 1e-5}


def ints(**fields: Any) -> QuantArgs:
    return QuantArgs(**fields)


def floats(**fields: Any) -> QuantArgs:
    return QuantArgs(type="float", **fields)


MX = {"strategy": "group", "group_size": 32, "scale_dtype": "uint8"}
NV = {"num_bits": 4, "strategy": "tensor_group", "group_size": 16}
TOKEN, STATIC = {"strategy": "token", "dynamic": True}, {"strategy": "tensor"}
DYNAMIC, ASYM = {"strategy": "tensor", "dynamic": True}, {"symmetric": False}
BLOCK = {"strategy": "block", "block_structure": [16, 24]}


def group(size: int, **more: Any) -> dict[str, Any]:
    return {"strategy": "group", "group_size": size, **more}


#: scheme, weights, inputs, outputs
CASES: list[tuple[str, QuantArgs, QuantArgs | None, QuantArgs | None]] = [
    ("w4a16_nvfp4", floats(**NV), None, None),
    ("w4a4_nvfp4", floats(**NV), floats(**NV, dynamic="local"), None),
    ("w4a16_mxfp4", floats(num_bits=4, **MX), None, None),
    ("w4a4_mxfp4", floats(num_bits=4, **MX), floats(num_bits=4, **MX, dynamic=True), None),
    ("w4a8_mxfp4", floats(num_bits=4, **MX), floats(**MX, dynamic=True), None),
    ("w4a8_mxfp4", floats(num_bits=4, **MX), floats(**TOKEN), None),
    ("w4a8_mxfp4", floats(num_bits=4, **MX), floats(**group(32), dynamic=True), None),
    ("w4a8_mxfp4", floats(num_bits=4, **MX), floats(**group(48), dynamic=True), None),
    ("w6a16_mxfp6", floats(num_bits=6, **MX), None, None),
    ("w6a8_mxfp6", floats(num_bits=6, **MX), floats(**MX, dynamic=True), None),
    ("w8a16_mxfp8", floats(**MX), None, None),
    ("w8a8_mxfp8", floats(**MX), floats(**MX, dynamic=True), None),
    ("w8a8_mxfp8", floats(**MX), floats(**group(32), dynamic=True), None),
    ("w8a16_fp8", floats(**group(40)), None, None),
    ("w8a8_fp8", floats(**group(32)), floats(**group(32), dynamic=True), None),
    ("w8a8_fp8", floats(**group(64)), floats(**TOKEN), None),
    *[
        ("w4a8_fp8", ints(num_bits=4, **w), floats(**i), None)
        for w in (group(32), group(32, symmetric=False), group(20), {"strategy": "channel"}, BLOCK)
        for i in (TOKEN, STATIC, DYNAMIC)
    ],
    *[
        ("wNa8o8_int", ints(num_bits=bits, **w), ints(**i), ints(**o))
        for bits in (4, 8)
        for w in (group(32), {"strategy": "channel"}, {"strategy": "channel", **ASYM})
        for i, o in ((STATIC, STATIC), (STATIC | ASYM, STATIC | ASYM))
    ],
    *[
        ("wNa4_int", ints(num_bits=bits, **w), ints(num_bits=4, **i), None)
        for bits, w in ((4, group(32)), (8, {"strategy": "channel"}), (3, group(12)), (8, BLOCK))
        for i in (TOKEN, TOKEN | ASYM, DYNAMIC, STATIC, group(24, dynamic=True))
    ],
    ("wNa8_int", ints(num_bits=4, **group(32)), ints(**group(32), dynamic=True), None),
    ("wNa8_int", ints(num_bits=8, **group(20), **ASYM), ints(**group(48), **ASYM, dynamic=True), None),
    *[
        ("wNa16_int", ints(num_bits=bits, **BLOCK, symmetric=s), None, None)
        for bits in (1, 4, 8)
        for s in (True, False)
    ],
    *[
        ("wNa16_int", ints(num_bits=1, **w, symmetric=s), None, None)
        for w in ({"strategy": "channel"}, {"strategy": "tensor"}, group(32), group(20, actorder="group"))
        for s in (True, False)
    ],
    ("wNa16_int", ints(num_bits=2, **group(16), **ASYM), None, None),
    ("wNa8_int", ints(num_bits=1, strategy="channel", symmetric=False), ints(**TOKEN), None),
    ("wNa8_int", ints(num_bits=8, **BLOCK), ints(**TOKEN), None),
]


def numerics(scheme: str) -> str:
    module = "nvfp4:NvFp4" if "nvfp4" in scheme else "mx:Mx" if "mx" in scheme else "integer:Integer"
    module = "fp8:Fp8" if scheme in ("w8a8_fp8", "w8a16_fp8") else module
    return f"quantdispatch.schemes.reference.{module}Numerics"


def sizes(w: QuantArgs) -> list[tuple[int, int]]:
    """K in whole groups, N and K with odd tails where nothing forbids them; one size fits the int4 op."""
    unit = w.group_size or 0
    wide = 480 if unit and 480 % unit == 0 else unit * 16
    return [(48, wide), (19, unit * 3)] if unit else [(64, 480), (33, 77)]


def described(case: tuple[str, QuantArgs, QuantArgs | None, QuantArgs | None]) -> str:
    return "-".join([case[0], *(side.describe() for side in case[1:] if side)])


@pytest.mark.parametrize("number", range(len(CASES)), ids=map(described, CASES))
def test_kernels_compute_what_the_scheme_says(number: int, layers: Any) -> None:
    scheme, w, i, o = CASES[number]
    for which, (n, k) in enumerate(sizes(w)):
        dtype = ("bfloat16", "float32", "float16")[(number + which) % 3]
        scale_dtype = (torch.bfloat16, torch.float32)[number % 2]
        layer = layers.make(
            w, i, outputs=o, n=n, k=k, dtype=dtype, bias=which == 0, scale_dtype=scale_dtype, scheme=scheme,
            reference=numerics(scheme), seed=number,
        )  # fmt: skip
        if scheme.endswith("mxfp8"):  # a group that does not name its scale's dtype has exponents there too
            layer.operands.scale = torch.randint(110, 124, layer.operands.scale.shape, dtype=torch.uint8)
        truth = ReferenceLinear(layer.spec)
        facts = {**layer.spec.flat, **FACTS}
        admitted = [kernel for kernel in KERNELS if kernel.predicate.test(facts).status == "yes"]
        assert admitted, "nothing but the reference takes it"
        for kernel in admitted:
            if kernel.probe and run_probe(kernel.probe):
                continue  # another processor's
            impl = load_target(kernel.target)(layer.spec)
            state = impl.pack(layer.operands)
            assert layers.same(impl.unpack(state), layer.operands), kernel.name
            if k >= 256:
                stored = truth.numerics.stored(layer.operands, LayerShape(n, k)).values()
                if kernel.name in ("cpu/microfloat", "cpu/dequant"):
                    assert sum(map(nbytes, state.values())) <= 1.1 * sum(map(nbytes, stored)) + 64, kernel.name
            for rows in (1, 3, 16, 64):
                x = torch.randn(rows, k, generator=torch.Generator().manual_seed(rows)).to(getattr(torch, dtype))
                expected = truth.apply(x, truth.pack(layer.operands)).double()
                y = impl.apply(x, state)
                assert y.dtype == x.dtype
                compare(y.double(), expected, o and 0.03, TOLERANCE[dtype], f"{kernel.name} {dtype} M={rows} {n}x{k}")


def compare(y: torch.Tensor, expected: torch.Tensor, step: float | None, tolerance: float, where: str) -> None:
    error = (y - expected).norm() / expected.norm()
    if step is None:
        assert error < tolerance * (3 if y.numel() < 64 else 1), f"{where}: {error:.2e}"
        return
    # where two sums a rounding apart fall on either side of a boundary, quantized outputs differ by a step
    off = (y - expected).abs() > step / 2
    assert off.double().mean() < 2e-3 and (y - expected).abs().max() < 1.1 * step, f"{where}: {error:.2e}"


def nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


#: of fp4, fp6 and fp8 in groups of 32
SMALL = ["cpu/native", "cpu/microfloat"]


def small(name: str) -> Any:
    kernel = next(kernel for kernel in KERNELS if kernel.name == name)
    if kernel.probe and (reason := run_probe(kernel.probe)):
        pytest.skip(f"{name} does not run here: {reason}")
    return load_target(kernel.target)


@pytest.mark.parametrize("name", SMALL)
def test_nan_weights_stay_nan(name: str, layers: Any) -> None:
    layer = layers.make(floats(**MX), n=40, k=64)
    bits = layer.operands.codes.view(torch.uint8)
    bits[3, 5], bits[17, 0] = 0x7F, 0xFF
    impl = small(name)(layer.spec)
    state = impl.pack(layer.operands)
    assert layers.same(impl.unpack(state), layer.operands)
    y = impl.apply(torch.zeros(2, 64).bfloat16(), state)
    assert y.isnan().all(0).nonzero().flatten().tolist() == [3, 17]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("exponent", [0, 1, 20, 254 - 20])
@pytest.mark.parametrize("bits", [4, 6, 8])
def test_extreme_exponents_are_exact(name: str, bits: int, exponent: int, layers: Any) -> None:
    layer = layers.make(floats(num_bits=bits, **MX), n=32, k=64, dtype="float32")
    layer.operands.scale = torch.full_like(layer.operands.scale, exponent)
    layer.operands.codes = (layer.operands.codes.float() / 64).clamp(-6, 6).to(torch.float8_e4m3fn) if bits == 8 else (
        layer.operands.codes
    )  # fmt: skip
    impl = small(name)(layer.spec)
    x = torch.randn(3, 64) * (2.0**60 if exponent < 127 else 2.0**-60)
    assert layers.error(impl.apply(x, impl.pack(layer.operands)), layer.output(x)) < 1e-5


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("bits", [4, 6])
def test_rows_of_a_shared_weight(name: str, bits: int, layers: Any) -> None:
    layer = layers.make(floats(num_bits=bits, **MX), n=40, k=96)
    impl = small(name)(layer.spec)
    state, index = impl.pack(layer.operands), torch.tensor([7, 39, 0, 7])
    whole = layer.operands
    chosen = replace(whole, codes=whole.codes[index], scale=whole.scale[index])
    assert layers.same(impl.rows(index, state), chosen)


def test_bf16_products(layers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The route of processors with bf16 instructions, wherever this runs."""
    monkeypatch.setattr("quantdispatch.backends.cpu.microfloat.NATIVE_BF16", True)
    for weights in (floats(**NV), floats(num_bits=6, **MX), floats(**MX)):
        layer = layers.make(weights, n=48, k=96)
        impl = load_target("quantdispatch.backends.cpu.microfloat:MicrofloatLinear")(layer.spec)
        x = torch.randn(70, 96).bfloat16()
        assert layers.error(impl.apply(x, impl.pack(layer.operands)), layer.output(x)) < 3.5e-3
