"""Stored tensors as the formats of compressed-tensors define them, value by value: nothing of any scheme is used."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...registry.operands import Operands
from .layers import Layer
from .operands import MAGNITUDES

PACKED, UNPACKED = frozenset({"pack-quantized"}), frozenset({"int-quantized", "naive-quantized", "float-quantized"})
SMALL = frozenset({"nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp6-pack-quantized", "mxfp8-quantized"})
#: what :func:`written` can write; dense layers and caches store the same in every format
FORMATS = PACKED | UNPACKED | SMALL


def written(layer: Layer, operands: Operands) -> dict[str, Tensor] | None:
    """The tensors of ``layer`` by local name, as compressed-tensors writes them; ``None`` for a format of others."""
    args, o = layer.weights, operands
    if layer.kind in ("kv_cache", "attention"):
        scales = {name: getattr(o, name) for name in ("k_scale", "v_scale", "q_scale")}
        return {name: scale for name, scale in scales.items() if scale is not None}
    tensors: dict[str, Any] = {} if o.bias is None else {"bias": o.bias}
    if args is None:
        return {**tensors, "weight": o.codes}
    if layer.format not in FORMATS:
        return None
    one = args.strategy == "tensor"
    tensors["weight_scale"] = o.scale.reshape(1) if one else o.scale
    if layer.format in PACKED:
        tensors["weight_packed"] = bit_words(o.codes.long() + (1 << (args.num_bits - 1)), args.num_bits)
        tensors["weight_shape"] = torch.tensor([layer.n, layer.k])
    elif args.type == "float" and args.num_bits < 8:
        tensors["weight_packed"] = bit_words(float_codes(o.codes, args.num_bits), args.num_bits, torch.uint8)
    else:
        tensors["weight"] = o.codes
    if o.zero_point is not None:
        packs = layer.format in PACKED and args.strategy in ("channel", "group")
        shifted = o.zero_point.long() + (1 << (args.num_bits - 1))
        zero = bit_words(shifted.t(), args.num_bits).t().contiguous() if packs else o.zero_point
        tensors["weight_zero_point"] = zero.reshape(1) if one else zero
    for name in ("global_scale", "g_idx"):
        if getattr(o, name) is not None:
            tensors[f"weight_{name}"] = getattr(o, name)
    for name in ("input_scale", "input_zero_point", "input_global_scale", "output_scale", "output_zero_point"):
        if getattr(o, name) is not None:
            tensors[name] = getattr(o, name)
    return tensors


def bit_words(values: Tensor, bits: int, dtype: torch.dtype = torch.int32) -> Tensor:
    """Integers [R, C], 0 to 2^bits - 1, to words [R, ceil(C bits / width)]: a row is one string of bits, the first
    value lowest, cut into words of ``dtype``; int32 words are filled up with zeros."""
    width = 32 if dtype == torch.int32 else 8
    string = ((values.long().unsqueeze(-1) >> torch.arange(bits)) & 1).flatten(1)
    string = torch.nn.functional.pad(string, (0, -string.shape[1] % width))
    words = (string.view(values.shape[0], -1, width) << torch.arange(width)).sum(-1)
    # the highest bit of an int32 is its sign
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(dtype)


def float_codes(codes: Tensor, bits: int) -> Tensor:
    """float8 values that fp4 or fp6 can hold to their bits: the sign highest, then the place among the magnitudes."""
    wide = codes.float()
    magnitudes = torch.tensor(MAGNITUDES[bits])
    place = (wide.abs().unsqueeze(-1) == magnitudes).int().argmax(-1)
    return place + (torch.signbit(wide).long() << (bits - 1))
