"""The built-in backends, held against the conformance kit."""

from __future__ import annotations

from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.kernels import run_probe
from quantdispatch.testing import BackendConformance, Layer
from quantdispatch.testing.conformance.layers import CAPABILITIES

#: of a kernel that computes whatever a scheme says
EVERYTHING = set(CAPABILITIES) - {"packed", "dense", "embedding", "cache", "compile", "fused-experts"}
#: an old processor's and a new one's: what does not run on the one at hand says so by its probe
PROCESSOR = {"isa.avx512_vnni": True, "isa.avx2": True, "quantdispatch-native": "1"}
INT4 = {"zero-points", "g-idx", "dynamic-inputs", "static-inputs", "experts", "bias", "bfloat16", "repeatable"}
W8A8 = {
    *("zero-points", "dynamic-inputs", "static-inputs", "quantized-outputs", "experts", "bias", "odd-shapes"),
    *("bfloat16", "float16", "float32", "repeatable", "threads"),
}


class TestReference(BackendConformance):
    backend = "reference"
    capabilities = EVERYTHING | {"dense", "embedding", "cache", "compile"}
    most_samples = 3


class Cpu(BackendConformance):
    backend = "cpu"
    environment = PROCESSOR
    most_layers = 16
    most_samples = 2


class TestCpuNative(Cpu):
    kernels = ("cpu/native",)
    capabilities = EVERYTHING | {"compile", "fused-experts"}
    most_layers = 40
    most_samples = 6


class TestCpuNativeInt8(Cpu):
    kernels = ("cpu/native_int8",)
    capabilities = EVERYTHING - {"float-weights"} | {"fused-experts"}


class TestCpuNativeInt8Allowed(Cpu):
    """Where the user allows it, int8 activations by token, whatever the scheme says of them."""

    kernels = ("cpu/native_int8_allowed",)
    allow = {"int8-activations"}
    capabilities = EVERYTHING - {"float-weights", "dynamic-inputs", "static-inputs", "quantized-outputs"}
    capabilities |= {"fused-experts"}
    most_layers = 8

    def computes(self, part: str, layer: Layer) -> Layer:
        return layer.with_(inputs=QuantArgs(num_bits=8, type="int", strategy="token", dynamic=True, symmetric=True))


class TestCpuNativeDense(Cpu):
    kernels = ("cpu/native_dense",)
    capabilities = {"dense", "bias", "odd-shapes", "bfloat16", "repeatable", "threads"}
    most_layers = 8


class TestCpuInt4(Cpu):
    kernels = ("cpu/int4_torch",)
    capabilities = INT4 | {"threads", "compile"}


class TestCpuInt8(Cpu):
    kernels = ("cpu/int8_torch",)
    capabilities = INT4 - {"g-idx", "dynamic-inputs", "static-inputs"} | {"odd-shapes", "threads"}


class TestCpuW8A8(Cpu):
    kernels = ("cpu/w8a8_onednn", "cpu/w7a8_onednn", "cpu/w8a8_torch")
    capabilities = W8A8


class TestCpuDequant(Cpu):
    kernels = ("cpu/dequant",)
    capabilities = EVERYTHING | {"compile"}


class TestCpuMicrofloat(Cpu):
    kernels = ("cpu/microfloat",)
    capabilities = EVERYTHING - {"zero-points", "g-idx", "blocks", "static-inputs", "quantized-outputs"} | {"packed"}


def test_most_run_here() -> None:
    running = [
        name
        for kind in _classes()
        for name, kernel in kind().records.items()
        if not kernel.probe or not run_probe(kernel.probe)
    ]
    assert len(running) >= 6


def _classes() -> list[type[BackendConformance]]:
    return [value for name, value in globals().items() if name.startswith("Test") and isinstance(value, type)]
