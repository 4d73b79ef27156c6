"""``dense``: a layer left as it is, ``weight`` [N, K] in bfloat16, float16 or float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from ..registry.facts import KernelSpec
from ..registry.scheme import LayerShape, Scheme, StoredTensor, TensorInfo
from .stored import FLOATS, two_dimensions


class Dense(Scheme):
    """y = x @ weight.T + bias."""

    name: ClassVar[str] = "dense"
    numerics: ClassVar[str] = "quantdispatch.schemes.reference.dense:DenseNumerics"

    def stored(self, shape: LayerShape) -> Sequence[StoredTensor]:
        return (StoredTensor("weight", ((shape.n, shape.k),), FLOATS, ("out", "in")),)

    def tensor_names(self) -> tuple[frozenset[str], frozenset[str]]:
        return frozenset({"weight"}), frozenset()

    def shape(self, name: str, tensors: Mapping[str, TensorInfo]) -> LayerShape:
        return LayerShape(*two_dimensions(name, "weight", tensors))

    def kernel_spec(self, shape: LayerShape | None, dtype: str, *, tensors: frozenset[str] = frozenset()) -> KernelSpec:
        return KernelSpec(
            op="linear",
            kind=self.layer.kind,
            scheme=self.name,
            weights=None,
            inputs=None,
            outputs=None,
            n=None if shape is None else shape.n,
            k=None if shape is None else shape.k,
            dtype=dtype,
            group_size=None if shape is None else shape.k,
            bias="bias" in tensors,
            reference=self.numerics,
        )
