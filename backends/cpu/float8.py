"""float8_e4m3fn to float by moving bits: torch's own conversion is scalar, ten times slower.

An e4m3 byte ``s eeee mmm`` put at the top of an fp16 word as ``s 0eeee mmm0000000`` is the same number times 2^-8 (the
exponent biases are 7 and 15), subnormals and zeros included. Only the NaN codes (0x7f, 0xff) come out as numbers; who
decodes weights handles those apart.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: what decoded values must be multiplied with
FP8_SCALE = 256.0
_NAN_BITS = 0x7F
# Sign-extending to 16 bits and shifting by 7 leaves a copy of the sign at bit 14, where the exponent's top bit is.
_KEEP = ~(1 << 14)
# as tensors, because wrapping a Python number in each call costs more than shifting a few hundred rows
with torch.inference_mode(False):
    _SHIFT = torch.tensor(7, dtype=torch.int16, device="cpu")
    _MASK = torch.tensor(_KEEP, dtype=torch.int16, device="cpu")


def decode_fp8(bits: Tensor, halves: Tensor, out: Tensor) -> None:
    """``bits``: int8 view of float8 [...]; ``halves``: int16 work space; ``out``: float. out = value / FP8_SCALE."""
    halves.copy_(bits)
    halves.bitwise_left_shift_(_SHIFT)
    halves.bitwise_and_(_MASK)
    out.copy_(halves.view(torch.float16))


def fp8_to_float(values: Tensor) -> Tensor:
    """float8 values to fp32, NaN kept: for activations, where a NaN may turn up in any call."""
    bits = values.view(torch.int8)
    halves = (bits.to(torch.int16) << 7) & _KEEP
    return (halves.view(torch.float16).float() * FP8_SCALE).masked_fill_(is_nan(bits), torch.nan)


def is_nan(bits: Tensor) -> Tensor:
    """Where an int8 view of float8 holds a NaN."""
    return (bits & _NAN_BITS) == _NAN_BITS
