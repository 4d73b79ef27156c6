"""Rules, schemes and formats, held against the conformance kit of ``quantdispatch.testing``."""

from __future__ import annotations

import torch
from foreign_files import Layer as ForeignLayer
from foreign_files import awq_gemm, awq_gemv, gptq
from torch import Tensor

from quantdispatch.registry.operands import Operands
from quantdispatch.testing import Layer, SchemeConformance

WRITERS = {
    "awq-gemm": awq_gemm,
    "awq-gemv": awq_gemv,
    "gptq": gptq,
    "gptq-v2": lambda layer: gptq(layer, "gptq_v2"),
    "gptq-words": lambda layer: gptq(layer, "words"),
}


class Foreign(SchemeConformance):
    plugins = ("quantdispatch_awq",)

    def written(self, layer: Layer, operands: Operands) -> dict[str, Tensor]:
        """By the tests' own writers, which pack Python integers value by value."""
        assert layer.weights is not None and layer.format is not None
        bits, half = layer.weights.num_bits, 1 << (layer.weights.num_bits - 1)
        groups = operands.scale.shape[1]
        zeros = torch.zeros_like(operands.codes[:, :groups]) if operands.zero_point is None else operands.zero_point
        columns = torch.arange(layer.k) // (layer.k // groups) if operands.g_idx is None else operands.g_idx.long()
        foreign = ForeignLayer(bits, operands.codes.long() + half, zeros.long() + half, operands.scale, columns)
        tensors: dict[str, Tensor] = WRITERS[layer.format](foreign)
        if "scales" in tensors:  # the writer for gemv makes float16 of them
            tensors["scales"] = tensors["scales"].to(operands.scale.dtype)
        return tensors if operands.bias is None else {**tensors, "bias": operands.bias}


class TestAWQ(Foreign):
    rules = ("wNa16_int-awq",)
    capabilities = {"zero-points", "experts"}

    def fits(self, layer: Layer) -> bool:
        """Eight values make a word; AutoAWQ has a width of zero points for three sizes of groups alone in gemv."""
        size = None if layer.weights is None else layer.weights.group_size
        known = layer.format != "awq-gemv" or size in (None, -1, 32, 64, 128)
        # these writers keep scales in float16
        return known and layer.n % 8 == 0 and layer.k % 8 == 0 and layer.scale_dtype == "float16"


class TestGPTQ(Foreign):
    rules = ("wNa16_int-gptq",)
    capabilities = {"zero-points", "experts", "g-idx"}

    def fits(self, layer: Layer) -> bool:
        """Whole words along K; of 3 bits and of zero points that straddle words along N there are no other sizes."""
        bits = layer.weights.num_bits if layer.weights is not None else 1
        return layer.k * bits % 32 == 0 and layer.n * bits % 32 == 0
