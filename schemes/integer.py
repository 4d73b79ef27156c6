"""Integer weights of 1 to 8 bits: what is stored, packed or one int8 a value.

Format: compressed-tensors ``compressors/pack_quantized/base.py`` and ``compressors/naive_quantized/base.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from ..numerics.layout import packed_width
from ..registry.args import QuantArgs
from ..registry.facts import LayerFacts
from ..registry.scheme import LayerShape, StoredTensor, TensorInfo
from .linear import LinearScheme
from .packed_shape import packed_shape
from .stored import (
    INT8,
    INT32,
    ZERO_POINTS,
    check_groups,
    input_tensors,
    output_tensors,
    scale_grid,
    two_dimensions,
    weight_scale,
    weights_of,
)

#: formats that store one int8 a value; every other one that reaches these schemes packs
UNPACKED_FORMATS = frozenset({"int-quantized", "naive-quantized"})
#: strategies whose zero points ``pack-quantized`` packs; a tensor's single one and those of blocks stay int8
PACKED_ZERO_POINTS = frozenset({"channel", "group"})


def is_packed(layer: LayerFacts) -> bool:
    return layer.format not in UNPACKED_FORMATS


def packs_zero_points(layer: LayerFacts) -> bool:
    return is_packed(layer) and weights_of(layer).strategy in PACKED_ZERO_POINTS


class IntegerScheme(LinearScheme):
    """Common half of the integer schemes; the subclasses differ in what they do with inputs and outputs."""

    numerics: ClassVar[str] = "quantdispatch.schemes.reference.integer:IntegerNumerics"

    @property
    def weights(self) -> QuantArgs:
        return weights_of(self.layer)

    def stored(self, shape: LayerShape) -> Sequence[StoredTensor]:
        args, n, k = self.weights, shape.n, shape.k
        tensors = [weight_scale(args, shape)]
        if is_packed(self.layer):
            width = packed_width(k, args.num_bits, shape.packing or "dense")
            tensors.insert(0, StoredTensor("weight_packed", ((n, width),), INT32, ("out", "in"), packed="in"))
            # the group scales say K too, and some writers leave the shape out
            needed = args.strategy != "group"
            tensors.append(StoredTensor("weight_shape", ((2,),), frozenset({"I64", "I32"}), ("",), required=needed))
        else:
            tensors.insert(0, StoredTensor("weight", ((n, k),), INT8, ("out", "in")))
        if not args.symmetric:
            tensors.append(self._zero_point(shape))
        if args.actorder == "group":
            tensors.append(StoredTensor("weight_g_idx", ((k,),), frozenset({"I32", "I64"}), ("in",)))
        return (*tensors, *input_tensors(self.layer.inputs), *output_tensors(self.layer.outputs))

    def _zero_point(self, shape: LayerShape) -> StoredTensor:
        shapes, axes = scale_grid(self.weights, shape)
        if not packs_zero_points(self.layer):
            return StoredTensor("weight_zero_point", shapes, ZERO_POINTS, axes)
        rows = packed_width(shape.n, self.weights.num_bits, shape.packing or "dense")
        return StoredTensor("weight_zero_point", ((rows, shapes[0][1]),), INT32, axes, packed="out")

    def tensor_names(self) -> tuple[frozenset[str], frozenset[str]]:
        # names and presence do not depend on the sizes, so any shape whose K the group divides will do
        declared = self.stored(LayerShape(1, self.weights.group_size or 1))
        required = frozenset(tensor.name for tensor in declared if tensor.required)
        return required, frozenset(tensor.name for tensor in declared) - required

    def shape(self, name: str, tensors: Mapping[str, TensorInfo]) -> LayerShape:
        if is_packed(self.layer):
            return packed_shape(name, tensors, self.weights, self.version)
        n, k = two_dimensions(name, "weight", tensors)
        check_groups(name, self.weights, k)
        return LayerShape(n, k)
