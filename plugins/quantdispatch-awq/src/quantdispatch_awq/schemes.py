"""What AutoAWQ and GPTQ store of a layer. Computed: ``x @ ((q - z) * s).T``, by whichever kernel takes these args.

K inputs, N outputs, G groups along K, b bits. Words are int32, low bits first.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from quantdispatch import CheckpointError
from quantdispatch.registry.scheme import LayerShape, StoredTensor, TensorInfo
from quantdispatch.schemes.stored import FLOATS, INT32, two_dimensions
from quantdispatch.schemes.wna16_int import WNA16Int

from .formats import GEMV, gemv_width


class _ForeignInt(WNA16Int):
    """Its tensors are ``qweight``, ``qzeros`` and ``scales``, and perhaps more."""

    def groups(self, k: int) -> int:
        size = self.weights.group_size
        return k // size if self.weights.strategy == "group" and size else 1

    def shape(self, name: str, tensors: Mapping[str, TensorInfo]) -> LayerShape:
        """Raises ``CheckpointError`` where ``qweight`` is no int32 matrix, or groups do not divide K."""
        shape = self._unpacked(name, *two_dimensions(name, "qweight", tensors))
        if tensors["qweight"].dtype != "I32":
            raise CheckpointError(
                "qweight has the wrong dtype",
                layer=name, field="qweight", observed=tensors["qweight"].dtype, required="I32",
                code="QD655",
            )  # fmt: skip
        size = self.weights.group_size
        if self.weights.strategy == "group" and size and shape.k % size:
            raise CheckpointError(
                f"K = {shape.k} is not divisible by the group size {size}",
                layer=name, field="group_size", observed=f"K {shape.k}, group_size {size}",
                required="K % group_size == 0", remedy="quantize the model with a group size that divides K",
                code="QD657",
            )  # fmt: skip
        return shape

    @abstractmethod
    def _unpacked(self, name: str, rows: int, columns: int) -> LayerShape:
        """N and K of a ``qweight`` [rows, columns]."""


class AWQInt(_ForeignInt):
    """``awq-gemm``: ``qweight`` [K, N/8], ``qzeros`` [G, N/8], ``scales`` [G, N]. ``awq-gemv``: ``qweight`` [N, K/8],
    ``qzeros`` [N, W], ``scales`` [N, 8 W], W of :func:`.formats.gemv_width`, filled up with zeros."""

    numerics: ClassVar[str] = "quantdispatch_awq.numerics:AWQNumerics"

    def stored(self, shape: LayerShape) -> Sequence[StoredTensor]:
        n, k, groups = shape.n, shape.k, self.groups(shape.k)
        if self.layer.format == GEMV:
            width = gemv_width(groups, self.weights.group_size or k)
            return (
                StoredTensor("qweight", ((n, k // 8),), INT32, ("out", "in"), packed="in"),
                StoredTensor("qzeros", ((n, width),), INT32, ("out", "group"), packed="in"),
                StoredTensor("scales", ((n, 8 * width),), FLOATS, ("out", "group")),
            )
        return (
            StoredTensor("qweight", ((k, n // 8),), INT32, ("in", "out"), packed="out"),
            StoredTensor("qzeros", ((groups, n // 8),), INT32, ("group", "out"), packed="out"),
            StoredTensor("scales", ((groups, n),), FLOATS, ("group", "out")),
        )

    def _unpacked(self, name: str, rows: int, columns: int) -> LayerShape:
        return LayerShape(rows, columns * 8) if self.layer.format == GEMV else LayerShape(columns * 8, rows)


class GPTQInt(_ForeignInt):
    """``qweight`` [K b/32, N], ``qzeros`` [G, N b/32], ``scales`` [G, N], ``g_idx`` int32 [K]: each column's group.

    Old writers gave every layer a bias, zero where the model has none.
    """

    numerics: ClassVar[str] = "quantdispatch_awq.numerics:GPTQNumerics"
    may_pad_bias: ClassVar[bool] = True

    def stored(self, shape: LayerShape) -> Sequence[StoredTensor]:
        n, k, bits, groups = shape.n, shape.k, self.weights.num_bits, self.groups(shape.k)
        ordered = self.weights.actorder == "group"
        return (
            StoredTensor("qweight", ((k * bits // 32, n),), INT32, ("in", "out"), packed="in"),
            StoredTensor("qzeros", ((groups, -(-n * bits // 32)),), INT32, ("group", "out"), packed="out"),
            StoredTensor("scales", ((groups, n),), FLOATS, ("group", "out")),
            StoredTensor("g_idx", ((k,),), frozenset({"I32", "I64"}), ("in",), required=ordered),
        )

    def _unpacked(self, name: str, rows: int, columns: int) -> LayerShape:
        bits = self.weights.num_bits
        if rows * 32 % bits:
            raise CheckpointError(
                f"qweight has {rows} rows of words, which hold no whole number of {bits}-bit values",
                layer=name, field="qweight", observed=[rows, columns], required=f"[K * {bits} / 32, N]",
                code="QD656",
            )  # fmt: skip
        return LayerShape(columns, rows * 32 // bits)
