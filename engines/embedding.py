"""``QuantEmbedding``: a look-up table whose rows stay packed; ``TiedHead``: a head that computes with the same rows.

A look-up dequantizes the rows asked for and no others.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..numerics.rows import row_args
from ..registry.facts import KernelSpec
from ..registry.kernels import Kernel
from ..registry.lazy import load_target
from ..registry.operands import Operands
from ..registry.scheme import LayerShape, Numerics, Scheme
from .binding import choose_kernel
from .lazy_weight import LazyWeight
from .packed import PackedLayer, args_text
from .tensors import dtype_name

#: values dequantized at once where a head has no kernel of its own: 8 MB of bf16
CHUNK = 1 << 22


class QuantEmbedding(PackedLayer):
    """Indices [...] to rows [..., K] in the dtype of activations; N is the size of the vocabulary.

    ``tied``: a head computes with the same weight, and there is one copy of it. Where the kernel of a linear layer can
    give single rows too (it has a method ``rows``), it serves both; else the head dequantizes some rows at a time.
    """

    layer_shape: LayerShape
    original: nn.Embedding

    def __init__(
        self,
        name: str,
        scheme: Scheme,
        shape: LayerShape,
        spec: KernelSpec,
        kernel: Kernel | None = None,
        *,
        backend: str | None = None,
        original: nn.Embedding | None = None,
        tied: bool = False,
        factor: float | None = None,
        rounded: bool = False,
    ) -> None:
        """``original``: the module that this one replaces. ``factor``: what it multiplies rows with, ``rounded`` to the
        dtype of activations first or not."""
        super().__init__(name, scheme, shape, spec, kernel, backend=backend)
        self.num_embeddings = self.out_features = shape.n
        self.embedding_dim = self.in_features = shape.k
        self.tied = tied
        self.factor, self.rounded = factor, rounded
        plain = original if original is not None else nn.Embedding(shape.n, shape.k, device="meta")
        self.padding_idx = plain.padding_idx
        # no child: nothing of it is stored or moved
        object.__setattr__(self, "original", plain)
        # found here and not in forward, where torch.compile would have to trace an import
        weights = scheme.layer.weights
        rows = replace(scheme.layer, weights=None if weights is None else row_args(weights))
        self._row_numerics = cast(Numerics, load_target(scheme.numerics)(rows))

    # -- running

    def forward(self, input: Tensor) -> Tensor:
        """Raises ``IndexError`` for an index outside of the vocabulary."""
        rows = self.look_up(input)
        factor = self.embed_scale
        return rows if factor is None else rows * factor

    def look_up(self, index: Tensor) -> Tensor:
        """Rows as they are stored, [..., K] for integers [...]."""
        if not self.shares_kernel:
            return cast(Tensor, self._impl.apply(index, self._buffers))  # type: ignore[union-attr]
        if index.numel() == 0:
            return torch.empty(*index.shape, self.embedding_dim, dtype=self.dtype, device=self.device)
        operands: Operands = self._impl.rows(index.reshape(-1), self._buffers)  # type: ignore[union-attr]
        weight: Tensor = self._row_numerics.dequantize(operands).to(self.dtype)
        return weight.reshape(*index.shape, self.embedding_dim)

    def project(self, x: Tensor) -> Tensor:
        """x [..., K] times the transpose of the weight: [..., N]. Raises ``TypeError`` for another dtype than the
        layer is bound to."""
        if x.dtype is not self._dtype:
            raise TypeError(
                f"{self.layer_name}: input of the tied head is {dtype_name(x.dtype)}, the layer is bound to "
                f"{self.spec.dtype}; convert the input, or the model with model.to(torch.{dtype_name(x.dtype)})"
            )
        if self.shares_kernel:
            return cast(Tensor, self._impl.apply(x, self._buffers))  # type: ignore[union-attr]
        step = max(1, CHUNK // self.embedding_dim)
        parts = [
            F.linear(x, self.look_up(torch.arange(start, min(start + step, self.num_embeddings), device=self.device)))
            for start in range(0, self.num_embeddings, step)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    @property
    def shares_kernel(self) -> bool:
        """Does the kernel of a linear layer hold the weight?"""
        return self.spec.op == "linear"

    # -- what model code reads off an embedding

    @property
    def weight(self) -> Tensor:
        """The dense weight as a :class:`LazyWeight`. Raises ``AttributeError`` while the module is empty."""
        if not self.loaded:
            raise AttributeError(f"{self.layer_name} has no weight yet: its tensors are not loaded")
        return LazyWeight(self)

    @property
    def embed_scale(self) -> float | None:
        """What rows are multiplied with, in models that scale their embeddings."""
        if self.factor is None or not self.rounded:
            return self.factor
        return float(torch.tensor(self.factor).to(self.dtype))

    @torch.no_grad()
    def dense_weight(self, dtype: torch.dtype | None = None) -> Tensor:
        """[N, K]: what compressed-tensors decompresses, in the scales' dtype, or that cast to ``dtype``."""
        weight: Tensor = self._numerics().dequantize(self.operands())
        return weight if dtype is None else weight.to(dtype)

    def dequantize(self, dtype: torch.dtype | None = None) -> nn.Embedding:
        """The module that this one replaced, with a dense weight, by default in the dtype of the activations."""
        plain = copy(self.original)
        plain._parameters = {"weight": nn.Parameter(self.dense_weight(dtype or self.dtype).contiguous())}
        if "embed_scale" in plain._buffers:
            plain._buffers = {**plain._buffers, "embed_scale": torch.tensor(self.factor, device=self.device)}
        return plain.train(self.training)

    def extra_repr(self) -> str:
        kernel = self.kernel.name if self.kernel else "no kernel bound"
        tied = ", tied" if self.tied else ""
        return (
            f"{self.num_embeddings}, {self.embedding_dim}, {self.spec.scheme}{args_text(self.spec)}, "
            f"{self.spec.dtype}, kernel={kernel}{tied}"
        )

    # -- helpers

    def _choose(self, spec: KernelSpec, device: torch.device) -> tuple[Kernel, KernelSpec]:
        if self.tied:
            linear = replace(spec, op="linear", kind="lm_head")
            kernel = choose_kernel(self.layer_name, linear, device, self.backend)
            if hasattr(load_target(kernel.target), "rows"):
                return kernel, linear
        return super()._choose(replace(spec, op="embedding", kind="embedding"), device)


class TiedHead(nn.Module):
    """x [..., K] to [..., N] with the weight of an embedding, which stays the only copy of it."""

    embedding: QuantEmbedding
    bias: nn.Parameter

    def __init__(self, embedding: QuantEmbedding, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        # no child: it is stored and moved as the embedding
        object.__setattr__(self, "embedding", embedding)
        self.register_parameter("bias", bias)
        self.in_features, self.out_features = embedding.embedding_dim, embedding.num_embeddings

    def forward(self, x: Tensor) -> Tensor:
        logits = self.embedding.project(x)
        return logits if self.bias is None else logits + self.bias

    @property
    def weight(self) -> Tensor:
        return self.embedding.weight

    def dequantize(self, table: nn.Embedding) -> nn.Linear:
        """A plain linear layer with the weight of ``table``, the dense embedding."""
        with torch.device("meta"):
            linear = nn.Linear(self.in_features, self.out_features, bias=False)
        linear.weight = cast(nn.Parameter, table.weight)
        linear.bias = self.bias
        return linear.train(self.training)

    def extra_repr(self) -> str:
        embedding: Any = self.embedding
        kernel = embedding.kernel.name if embedding.kernel else "no kernel bound"
        how = f"kernel={kernel}" if embedding.shares_kernel else "some rows dequantized at a time"
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, tied to {embedding.layer_name}, {how}"
        )
