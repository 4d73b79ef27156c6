"""Packing of signed low-bit integers into int32 words and back.

The stored value is offset-binary (code + 2^(bits-1)), low bits first; see :mod:`.layout` for the two layouts. The work
is done on bytes: in the dense layout 8 values fill exactly ``bits`` bytes, so temporaries stay about as small as the
codes. Words are seen as little-endian bytes, which is what a safetensors file holds and the hosts of torch use.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .layout import packed_width

__all__ = ["pack_int32", "packed_width", "unpack_int32"]


def pack_int32(codes: Tensor, bits: int, *, axis: int = 1, layout: str = "dense") -> Tensor:
    """Pack int8 codes [R, C] along ``axis`` into contiguous int32: [R, width] or [width, C].

    Raises ``ValueError`` for a code outside ``bits`` bits: it would spill into its neighbours.
    """
    if codes.dtype != torch.int8 or codes.ndim != 2:
        raise ValueError(f"codes must be int8 of two dimensions, not {codes.dtype} {tuple(codes.shape)}")
    half = 1 << (bits - 1)
    if bits < 8 and codes.numel():
        low, high = (int(v) for v in torch.aminmax(codes))
        if low < -half or high >= half:
            raise ValueError(f"codes {low}..{high} do not fit in {bits} bits")
    if axis == 0:
        return pack_int32(codes.t(), bits, layout=layout).t().contiguous()
    width = packed_width(codes.shape[1], bits, layout)
    values = (codes.contiguous().view(torch.uint8) + half) & ((1 << bits) - 1)
    if _same_in_both(bits) or layout == "dense":
        return _pack_dense(values, bits, width)
    return _pack_padded(values, bits, width)


def unpack_int32(words: Tensor, bits: int, size: int, *, axis: int = 1, layout: str = "dense") -> Tensor:
    """The inverse: int32 words packed along ``axis`` to contiguous int8 codes with ``size`` values along it."""
    if words.dtype != torch.int32 or words.ndim != 2:
        raise ValueError(f"words must be int32 of two dimensions, not {words.dtype} {tuple(words.shape)}")
    if axis == 0:
        return unpack_int32(words.t(), bits, size, layout=layout).t().contiguous()
    width = packed_width(size, bits, layout)
    if words.shape[1] != width:
        raise ValueError(f"{size} values of {bits} bits take {width} words, {words.shape[1]} were given")
    if _same_in_both(bits) or layout == "dense":
        values = _unpack_dense(words, bits, size)
    else:
        values = _unpack_padded(words, bits, size)
    return values.sub_(1 << (bits - 1)).view(torch.int8)


def _same_in_both(bits: int) -> bool:
    return 32 % bits == 0


def _pack_dense(values: Tensor, bits: int, width: int) -> Tensor:
    rows, size = values.shape
    if bits in _SPLITS:
        values = F.pad(values, (0, width * 32 // bits - size)).reshape(-1)
        for half in reversed(_SPLITS[bits]):
            values = _join(values, half)
        return _as_words(values.view(rows, width * 4), width)
    # whole octets that cover the words: 8 values in `bits` bytes
    octets = -(-width * 4 // bits)
    values = F.pad(values, (0, octets * 8 - size)).view(rows, octets, 8)
    out = torch.zeros(rows, octets, bits, dtype=torch.uint8, device=values.device)
    for i in range(8):
        byte, shift = divmod(i * bits, 8)
        out[:, :, byte] |= values[:, :, i] << shift
        if shift + bits > 8:
            out[:, :, byte + 1] |= values[:, :, i] >> (8 - shift)
    return _as_words(out.view(rows, octets * bits)[:, : width * 4], width)


def _as_words(stored: Tensor, width: int) -> Tensor:
    return _flat(stored).view(torch.int32).view(stored.shape[0], width)


def _flat(tensor: Tensor) -> Tensor:
    """One dimension of stride 1. A dimension of size 1 may have any stride and still count as contiguous, but a view
    of another element size looks at the stride."""
    flat = tensor.reshape(-1)
    return flat if flat.stride(0) == 1 else flat.clone(memory_format=torch.contiguous_format)


def _unpack_dense(words: Tensor, bits: int, size: int) -> Tensor:
    rows = words.shape[0]
    stored = _flat(words).view(torch.uint8).view(rows, words.shape[1] * 4)
    if bits in _SPLITS:
        values = stored.reshape(-1)
        for half in _SPLITS[bits]:
            values = _split(values, half)
        values = values.view(rows, -1)[:, :size]
        # a fresh tensor in every case: the caller goes on in place
        return values.clone(memory_format=torch.contiguous_format) if bits == 8 else values.contiguous()
    octets = -(-stored.shape[1] // bits)
    stored = F.pad(stored, (0, octets * bits - stored.shape[1])).view(rows, octets, bits)
    out = torch.empty(rows, octets, 8, dtype=torch.uint8, device=words.device)
    mask = (1 << bits) - 1
    for i in range(8):
        byte, shift = divmod(i * bits, 8)
        value = stored[:, :, byte] >> shift
        if shift + bits > 8:
            value |= stored[:, :, byte + 1] << (8 - shift)
        out[:, :, i] = value.bitwise_and_(mask)
    return out.view(rows, octets * 8)[:, :size].contiguous()


# Widths that divide a byte go by halving: bytes to nibbles, nibbles to pairs of bits, those to bits. Two bytes are
# handled as one 16-bit integer, which keeps every pass contiguous; strided byte passes are three times slower.
_SPLITS = {8: (), 4: (4,), 2: (4, 2), 1: (4, 2, 1)}


def _split(values: Tensor, bits: int) -> Tensor:
    """uint8 [M], each two values of ``bits`` bits, to uint8 [2 M]."""
    wide = values.to(torch.int16)
    wide |= wide << (8 - bits)
    wide &= (1 << bits) - 1 | ((1 << bits) - 1) << 8
    return wide.view(torch.uint8)


def _join(values: Tensor, bits: int) -> Tensor:
    """The inverse: pairs of values of ``bits`` bits into one of twice as many. uint8 [2 M] to uint8 [M]."""
    wide = values.view(torch.int16)
    return ((wide | (wide >> (8 - bits))) & 0xFF).to(torch.uint8)


def _pack_padded(values: Tensor, bits: int, width: int) -> Tensor:
    rows, size = values.shape
    per_word = 32 // bits
    values = F.pad(values, (0, width * per_word - size)).view(rows, width, per_word)
    out = torch.zeros(rows, width, dtype=torch.int32, device=values.device)
    for i in range(per_word):
        out |= values[:, :, i].to(torch.int32) << (bits * i)
    return out


def _unpack_padded(words: Tensor, bits: int, size: int) -> Tensor:
    rows, width = words.shape
    per_word = 32 // bits
    out = torch.empty(rows, width, per_word, dtype=torch.uint8, device=words.device)
    mask = (1 << bits) - 1
    for i in range(per_word):
        # the shift is arithmetic; the mask drops the copies of the sign bit
        out[:, :, i] = (words >> (bits * i)) & mask
    return out.view(rows, width * per_word)[:, :size].contiguous()
