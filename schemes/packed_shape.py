"""N, K and layout of a packed weight from its headers, and from ``weight_shape`` where its bytes are at hand.

The width alone gives K only to within a word, so the group scales or ``weight_shape`` must say it; a width that fits
the declared K in no layout is refused rather than read wrongly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..numerics.layout import LAYOUTS, Layout, largest_size, packed_width
from ..registry.args import QuantArgs
from ..registry.errors import CheckpointError
from ..registry.scheme import LayerShape, TensorInfo
from .stored import check_groups, two_dimensions

#: the last release of compressed-tensors that wrote the padded layout
LAST_PADDED = (0, 17)
_SHAPE_BYTES = {"I64": 8, "I32": 4}


def packed_shape(name: str, tensors: Mapping[str, TensorInfo], args: QuantArgs, version: str | None) -> LayerShape:
    """Raises ``CheckpointError`` naming the tensor when K cannot be known or the tensors contradict each other."""
    n, width = two_dimensions(name, "weight_packed", tensors)
    if tensors["weight_packed"].dtype != "I32":  # before the width, which would be of other words
        raise CheckpointError(
            "weight_packed has the wrong dtype",
            layer=name, field="weight_packed", observed=tensors["weight_packed"].dtype, required="I32", code="QD655",
        )  # fmt: skip
    k = _stored_k(name, tensors, n)
    if k is None:
        k = _derived_k(name, tensors, args, width, version)
    check_groups(name, args, k)
    zero_points = tensors.get("weight_zero_point")
    rows = zero_points.shape[0] if zero_points is not None and len(zero_points.shape) == 2 else None
    return LayerShape(n, k, _layout(name, args.num_bits, (n, k), (width, rows), version))


def writes_padded(version: str | None) -> bool:
    """Whether that release of compressed-tensors padded words. A checkpoint without a version is older than the key."""
    match = re.match(r"v?(\d+)\.(\d+)", version or "")
    return match is None or (int(match[1]), int(match[2])) <= LAST_PADDED


def _stored_k(name: str, tensors: Mapping[str, TensorInfo], n: int) -> int | None:
    """K as ``weight_shape`` says, ``None`` when it is absent or only its header is at hand."""
    info = tensors.get("weight_shape")
    if info is None:
        return None
    size = _SHAPE_BYTES.get(info.dtype)
    if size is None or tuple(info.shape) != (2,):
        raise CheckpointError(
            "weight_shape is not two integers",
            layer=name,
            field="weight_shape",
            observed=f"{info.dtype} {list(info.shape)}",
            required="I64 or I32 [2]",
            code="QD656",
        )
    data = info.read()
    if data is None:
        return None
    rows, columns = (int.from_bytes(data[i * size : (i + 1) * size], "little", signed=True) for i in (0, 1))
    if rows != n or columns <= 0:
        raise CheckpointError(
            f"weight_shape says [{rows}, {columns}] but weight_packed has {n} rows",
            layer=name,
            field="weight_shape",
            observed=[rows, columns],
            required=f"[{n}, K]",
            code="QD656",
        )
    return columns


def _derived_k(name: str, tensors: Mapping[str, TensorInfo], args: QuantArgs, width: int, version: str | None) -> int:
    if args.strategy == "group" and args.group_size:
        return two_dimensions(name, "weight_scale", tensors)[1] * args.group_size
    if "weight_shape" not in tensors:
        raise CheckpointError(
            "weight_shape is missing and nothing else says how many columns the packed words hold",
            layer=name,
            field="weight_shape",
            observed=f"{width} words of {args.num_bits} bits",
            required="I64 [2]",
            code="QD654",
        )
    # Only headers are at hand: the most that fits, exact for every K that fills its words.
    layout = "padded" if 32 % args.num_bits and writes_padded(version) else "dense"
    return largest_size(width, args.num_bits, layout)


def _layout(
    name: str, bits: int, sizes: tuple[int, int], stored: tuple[int, int | None], version: str | None
) -> Layout:
    """The layout in which both the weight (along K) and the zero points (along N) have their stored widths."""
    (n, k), (width, rows) = sizes, stored
    by_width = [layout for layout in LAYOUTS if packed_width(k, bits, layout) == width]
    if not by_width:
        dense, padded = (packed_width(k, bits, layout) for layout in LAYOUTS)
        required = f"[{n}, {dense}]" if dense == padded else f"[{n}, {dense}] (dense) or [{n}, {padded}] (padded)"
        raise CheckpointError(
            f"weight_packed is {width} words wide, which fits {k} columns of {bits} bits in no layout",
            layer=name,
            field="weight_packed",
            observed=[n, width],
            required=required,
            code="QD656",
        )
    if 32 % bits == 0:
        return "dense"
    fitting = [layout for layout in by_width if rows is None or packed_width(n, bits, layout) == rows]
    if len(fitting) == 1:
        return fitting[0]
    # None fits: the check of weight_zero_point names it. Both fit: the widths do not tell, the writer's release does.
    candidates = fitting or by_width
    if len(candidates) == 1:
        return candidates[0]
    return "padded" if writes_padded(version) else "dense"
