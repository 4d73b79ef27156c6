"""Codes of a weight at the size that they have in a file, row by row: what an embedding keeps in memory.

A look-up takes a few rows of very many, so rows stay apart and unpacking comes after taking. Plain torch, any device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..registry.args import QuantArgs
from .microfloats import pack_floats, unpack_floats
from .packing import pack_int32, unpack_int32

#: values to a whole number of bytes, for floats
_UNIT = {4: 2, 6: 4}


def pack_rows(codes: Tensor, args: QuantArgs) -> Tensor:
    """[N, K] of int8 or float8_e4m3fn to [N, W]: int32 words, or bytes of floats; codes of 8 bits stay as they are."""
    if args.num_bits == 8 or _ragged(codes.shape[1], args):
        return codes.contiguous()
    if args.type == "int":
        return pack_int32(codes, args.num_bits)
    return pack_floats(codes, args.num_bits)


def unpack_rows(packed: Tensor, args: QuantArgs, k: int) -> Tensor:
    """The inverse for any rows [R, W] of it: [R, k]."""
    if packed.dtype in (torch.int8, torch.float8_e4m3fn):
        return packed
    if args.type == "int":
        return unpack_int32(packed, args.num_bits, k)
    return unpack_floats(packed, args.num_bits)


def _ragged(k: int, args: QuantArgs) -> bool:
    """Floats of 4 and 6 bits that fill no whole number of bytes a row stay unpacked."""
    return args.type == "float" and k % _UNIT.get(args.num_bits, 1) != 0
