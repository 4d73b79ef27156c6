"""What the schemes of one weight matrix ask of a kernel; the same whatever the codes are."""

from __future__ import annotations

from ..registry.facts import KernelSpec
from ..registry.scheme import LayerShape, Scheme
from .stored import shared_columns, weights_of


class LinearScheme(Scheme):
    """A scheme of y = x W.T + b with quantized W [N, K], or of an embedding: rows of W, N being the vocabulary."""

    def kernel_spec(self, shape: LayerShape | None, dtype: str, *, tensors: frozenset[str] = frozenset()) -> KernelSpec:
        weights = weights_of(self.layer)
        return KernelSpec(
            op="embedding" if self.layer.kind == "embedding" else "linear",
            kind=self.layer.kind,
            scheme=self.name,
            weights=self.layer.weights,
            inputs=self.layer.inputs,
            outputs=self.layer.outputs,
            n=None if shape is None else shape.n,
            k=None if shape is None else shape.k,
            dtype=dtype,
            group_size=shared_columns(weights, shape),
            has_g_idx=weights.actorder == "group",
            bias="bias" in tensors,
            reference=self.numerics,
        )
