"""``w8a8_fp8`` and ``w8a16_fp8``: float8_e4m3 weights, with float8 inputs or with inputs left as they are.

Format: compressed-tensors ``float-quantized`` and ``naive-quantized`` (``compressors/naive_quantized/base.py``): the
codes as F8_E4M3 [N, K] and ``weight_scale`` [1], [N, 1] or, for blocks, [ceil(N/bn), ceil(K/bk)].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from ..registry.scheme import LayerShape, StoredTensor, TensorInfo
from .linear import LinearScheme
from .stored import check_groups, input_tensors, two_dimensions, weight_scale, weights_of

FP8 = frozenset({"F8_E4M3"})


class Fp8Scheme(LinearScheme):
    """Common half; the subclasses differ in what they do with inputs."""

    numerics: ClassVar[str] = "quantdispatch.schemes.reference.fp8:Fp8Numerics"

    def stored(self, shape: LayerShape) -> Sequence[StoredTensor]:
        weight = StoredTensor("weight", ((shape.n, shape.k),), FP8, ("out", "in"))
        return (weight, weight_scale(weights_of(self.layer), shape), *input_tensors(self.layer.inputs))

    def tensor_names(self) -> tuple[frozenset[str], frozenset[str]]:
        names = frozenset(tensor.name for tensor in self.stored(LayerShape(1, weights_of(self.layer).group_size or 1)))
        return names, frozenset()

    def shape(self, name: str, tensors: Mapping[str, TensorInfo]) -> LayerShape:
        n, k = two_dimensions(name, "weight", tensors)
        check_groups(name, weights_of(self.layer), k)
        return LayerShape(n, k)


class W8A8Fp8(Fp8Scheme):
    """Inputs: static per tensor (``input_scale``); dynamic per tensor, per token or, with block weights, per group."""

    name: ClassVar[str] = "w8a8_fp8"


class W8A16Fp8(Fp8Scheme):
    """Weight-only."""

    name: ClassVar[str] = "w8a16_fp8"
