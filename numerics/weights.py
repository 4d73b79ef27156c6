"""From weight codes to weights, with the roundings of compressed-tensors' decompression
(``quantization/lifecycle/forward_helpers.py``): codes and zero points are cast to the scale's dtype, subtracted there
and multiplied there."""

from __future__ import annotations

import torch
from torch import Tensor

from ..registry.args import QuantArgs


def dequantize(
    codes: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    args: QuantArgs,
    *,
    g_idx: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The weight [N, K] of int8 or float8 ``codes`` [N, K].

    ``scale`` and ``zero_point``: [1, 1] (tensor), [N, 1] (channel), [N, G] (group), [ceil(N/bn), ceil(K/bk)] (block).
    ``g_idx``: int32 [K], group of each column, instead of column // group_size.

    ``dtype=None``: in the scale's dtype, bit for bit what compressed-tensors decompresses. Else computed in the wider
    of the two dtypes and then cast, so that float32 and float64 show the exact weights rather than the rounded ones.
    """
    compute = scale.dtype if dtype is None else torch.promote_types(scale.dtype, dtype)
    weight = codes.to(compute)
    scale = scale.to(compute)
    offset = None if zero_point is None else zero_point.to(compute)
    if args.strategy == "group" and g_idx is not None:
        columns = g_idx.to(torch.long)
        _apply(weight, scale[:, columns], None if offset is None else offset[:, columns])
    elif args.strategy == "group":
        grouped = weight.view(weight.shape[0], scale.shape[1], weight.shape[1] // scale.shape[1])
        _apply(grouped, scale.unsqueeze(-1), None if offset is None else offset.unsqueeze(-1))
    elif args.strategy == "block":
        _apply_blocks(weight, scale, offset, args)
    elif args.strategy in ("tensor", "channel"):
        _apply(weight, scale.reshape(-1, 1), None if offset is None else offset.reshape(-1, 1))
    else:
        raise ValueError(f"weights have strategy tensor, channel, group or block, not {args.strategy}")
    return weight if dtype is None else weight.to(dtype)


def _apply(weight: Tensor, scale: Tensor, offset: Tensor | None) -> None:
    """In place: one buffer of the weight's size is all that is needed."""
    if offset is not None:
        weight -= offset
    weight *= scale


def _apply_blocks(weight: Tensor, scale: Tensor, offset: Tensor | None, args: QuantArgs) -> None:
    if args.block_structure is None:
        raise ValueError("block strategy without block_structure")
    rows, columns = args.block_structure
    k = weight.shape[1]
    # One band of blocks at a time: the last one may be short in either direction.
    for band in range(scale.shape[0]):
        part = weight[band * rows : (band + 1) * rows]
        band_scale = scale[band].repeat_interleave(columns)[:k]
        band_offset = None if offset is None else offset[band].repeat_interleave(columns)[:k]
        _apply(part, band_scale, band_offset)
