"""Dense storage of 1- to 8-bit codes, laid out so that unpacking is a few contiguous passes.

The file interleaves neighbours, which makes unpacking strided; here a code's bits are split into planes of 4, 2 and 1
bits (7 = 4 + 2 + 1), and a byte of the 4-bit plane holds columns k and k + K/2. The size is that of the file: ``bits``
bits a code, K rounded up to a multiple of 8.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .scratch import scratch

#: plane widths a number of bits is made of, low bits first
PLANES = {1: (1,), 2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1)}

with torch.inference_mode(False):
    _SHIFTS = {w: torch.arange(0, 8, w, dtype=torch.uint8, device="cpu").view(-1, 1) for w in (1, 2, 4)}
    _MASKS = {w: torch.tensor((1 << w) - 1, dtype=torch.uint8, device="cpu") for w in (1, 2, 4)}


def packed_bytes(k: int, bits: int) -> int:
    """Bytes a row of ``k`` codes takes."""
    return k if bits == 8 else -(-k // 8) * bits


def pack_planes(codes: Tensor, bits: int) -> Tensor:
    """int8 codes [N, K] in -2^(bits-1) .. 2^(bits-1)-1 to uint8 [N, packed_bytes(K, bits)]; 8 bits stay int8 [N, K]."""
    if bits == 8:
        return codes.contiguous()
    half = 1 << (bits - 1)
    values = F.pad(codes.contiguous().view(torch.uint8) + half, (0, -codes.shape[1] % 8))
    planes, shift = [], 0
    for width in PLANES[bits]:
        plane = (values >> shift) & ((1 << width) - 1)
        per_byte = 8 // width
        parts = plane.view(plane.shape[0], per_byte, -1)
        byte = parts[:, 0].clone()
        for i in range(1, per_byte):
            byte |= parts[:, i] << (i * width)
        planes.append(byte)
        shift += width
    return torch.cat(planes, dim=1)


def unpack_planes(packed: Tensor, bits: int, out: Tensor) -> None:
    """Fill ``out``, uint8 [N, K rounded up to a multiple of 8], with the codes in offset-binary (code + 2^(bits-1))."""
    rows, padded = out.shape
    start, shift = 0, 0
    for width in PLANES[bits]:
        per_byte = 8 // width
        size = padded // per_byte
        stored = packed[:, start : start + size]
        target = out if shift == 0 else scratch("plane", (rows, padded), torch.uint8)
        if width == 4:
            torch.bitwise_and(stored, _MASKS[4], out=target[:, :size])
            torch.bitwise_right_shift(stored, _SHIFTS[4][1], out=target[:, size:])
        else:
            # one call for all: of the narrow parts of a few hundred rows each would cost more than what it does
            torch.bitwise_right_shift(stored.unsqueeze(1), _SHIFTS[width], out=target.view(rows, per_byte, size))
            target.bitwise_and_(_MASKS[width])
        if shift:
            out |= target.bitwise_left_shift_(shift)
        start, shift = start + size, shift + width


def codes_of(packed: Tensor, bits: int, k: int) -> Tensor:
    """The inverse of :func:`pack_planes`: fresh int8 codes [N, K]."""
    if bits == 8:
        return packed.clone()
    out = torch.empty(packed.shape[0], -(-k // 8) * 8, dtype=torch.uint8, device="cpu")
    unpack_planes(packed, bits, out)
    return out.sub_(1 << (bits - 1)).view(torch.int8)[:, :k].contiguous()
