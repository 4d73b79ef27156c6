"""What the schemes of small floats in small groups store: packed codes, and scales that are no plain floats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import gcd

from ..registry.errors import CheckpointError
from ..registry.facts import KernelSpec
from ..registry.scheme import LayerShape, StoredTensor, TensorInfo
from ..registry.tensor_checks import check_tensor
from .linear import LinearScheme
from .stored import two_dimensions, weights_of

#: of codes packed into bytes
BYTES = frozenset({"U8"})
#: of fp8 codes, one a byte
FP8 = frozenset({"F8_E4M3"})


class MicroscalingScheme(LinearScheme):
    """Weights in groups along K; codes of 4 and 6 bits packed into bytes along K, those of 8 bits one a byte."""

    @property
    def bits(self) -> int:
        return weights_of(self.layer).num_bits

    @property
    def group_size(self) -> int:
        size = weights_of(self.layer).group_size
        if not size:
            raise ValueError("microscaling weights come in groups")
        return size

    def codes(self, shape: LayerShape) -> StoredTensor:
        """``weight`` F8_E4M3 [N, K], or ``weight_packed`` U8 [N, K/2] (fp4) or [N, 3K/4] (fp6)."""
        n, k = shape.n, shape.k
        if self.bits == 8:
            return StoredTensor("weight", ((n, k),), FP8, ("out", "in"))
        return StoredTensor("weight_packed", ((n, k * self.bits // 8),), BYTES, ("out", "in"), packed="in")

    def scales(self, shape: LayerShape, dtypes: frozenset[str]) -> StoredTensor:
        """``weight_scale`` [N, K/g]."""
        return StoredTensor("weight_scale", ((shape.n, shape.k // self.group_size),), dtypes, ("out", "group"))

    def tensor_names(self) -> tuple[frozenset[str], frozenset[str]]:
        # names do not depend on the sizes, so any shape whose K the group divides will do
        return frozenset(tensor.name for tensor in self.stored(LayerShape(1, self.group_size))), frozenset()

    def shape(self, name: str, tensors: Mapping[str, TensorInfo]) -> LayerShape:
        """Raises ``CheckpointError`` for codes that are no matrix of their dtype, and for a K that is no whole number
        of groups."""
        codes, dtypes = ("weight", FP8) if self.bits == 8 else ("weight_packed", BYTES)
        n, width = two_dimensions(name, codes, tensors)
        # before K is made of the width: words hold more than bytes
        check_tensor(name, StoredTensor(codes, ((n, width),), dtypes), tensors[codes])
        k = self._unpacked(name, width)
        if k % self.group_size:
            raise CheckpointError(
                f"K = {k} is not divisible by the group size {self.group_size}",
                layer=name,
                field="weights.group_size",
                observed=f"K {k}, group_size {self.group_size}",
                required="K % group_size == 0",
                remedy="compressed-tensors cannot decompress it either: quantize with a group size that divides K, "
                "or leave the layer dense",
                code="QD657",
            )
        return LayerShape(n, k)

    def _unpacked(self, name: str, width: int) -> int:
        """K of rows of ``width`` bytes: four fp6 codes fill three bytes, two fp4 codes one, an fp8 code its own."""
        unit = self.bits // gcd(self.bits, 8)
        if width % unit:
            raise CheckpointError(
                f"weight_packed holds no whole number of {self.bits}-bit codes a row",
                layer=name,
                field="weight_packed",
                observed=f"{width} bytes a row",
                required=f"a multiple of {unit}",
                code="QD656",
            )
        return width * 8 // self.bits

    def kernel_spec(self, shape: LayerShape | None, dtype: str, *, tensors: frozenset[str] = frozenset()) -> KernelSpec:
        return replace(super().kernel_spec(shape, dtype, tensors=tensors), group_size=self.group_size)
