"""torch's own quantized products, held against the conformance kit: planned for a GPU, run by the same ops on the CPU.
What the device's part of torch makes of them only a GPU can say."""

from __future__ import annotations

from quantdispatch.testing import BackendConformance


class OnCpu(BackendConformance):
    backend = "torch"
    device = "cuda:sm90"
    environment = {"torch": "2.13"}
    runs_on = "cpu"
    most_layers = 10
    most_samples = 2


FLOAT8 = {"bfloat16", "float16", "bias", "dynamic-inputs", "static-inputs", "experts", "float-weights"}


class TestScaledMm(OnCpu):
    kernels = ("torch/scaled_mm", "torch/scaled_mm_after")
    capabilities = FLOAT8


class TestScaledMmRows(OnCpu):
    kernels = ("torch/scaled_mm_rows",)
    # experts together need a grouped product, which torch has for GPUs only: here `fuse` gives None
    capabilities = FLOAT8 - {"float16"} | {"fused-experts"}


class TestIntMm(OnCpu):
    kernels = ("torch/int_mm",)
    capabilities = FLOAT8 - {"float-weights"} | {"zero-points", "quantized-outputs"}
