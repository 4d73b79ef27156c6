"""Triton's kernels, held against the conformance kit: planned for a GPU, run by the interpreter on the CPU, which says
nothing of what a GPU's compiler makes of them."""

from __future__ import annotations

from quantdispatch.testing import BackendConformance


class TestTriton(BackendConformance):
    backend = "triton"
    kernels = ("triton/wna16",)
    device = "cuda:sm90"
    most_layers = 6
    most_samples = 1
    capabilities = {
        *("bfloat16", "float16", "bias", "blocks", "experts", "float-weights", "g-idx", "odd-shapes", "zero-points"),
    }


class TestTritonQuantizedInputs(BackendConformance):
    backend = "triton"
    kernels = ("triton/quantized", "triton/experts")
    device = "cuda:sm90"
    most_layers = 6
    most_samples = 1
    capabilities = {
        *("bfloat16", "float16", "bias", "blocks", "experts", "float-weights", "odd-shapes", "zero-points"),
        *("dynamic-inputs", "static-inputs", "quantized-outputs", "fused-experts"),
    }
