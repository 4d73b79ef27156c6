"""Codes of fp4 (e2m1) and fp6 (e2m3) at the size they have in the file, laid out so that decoding is a few contiguous
passes.

Both have their sign first, two bits of exponent with bias 1, and then the mantissa. Put at the top of an fp16 word as
``s 000ee m...`` a code is the same number times 2^-14 (fp16's bias is 15), subnormals and the sign of zero included.
To get there a nibble ``s ee m`` goes to the top of an int16 word, which shifted right by three spreads its sign over
the bits between, and a mask takes those away.

A word of 16 bits holds the first four bits of four codes, of columns k, k + W, k + 2W and k + 3W with W = ceil(K / 4),
the first on top. The last two bits of fp6 follow behind, eight codes a word in the same manner.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ...numerics.microfloats import values
from .scratch import scratch

#: modes of a weight's codes, beside the numbers of bits of integers
FP4, FP6 = -4, -6
#: what decoded values must be multiplied with
SMALL_SCALE = 2.0**14
_UNIT = {FP4: 4, FP6: 8}
#: codes repacked at once: the indices of their look-up take eight times that
_CHUNK = 1 << 22

with torch.inference_mode(False):
    #: what brings each of a word's nibbles to the top; each of its pairs of bits
    _FOURTHS = torch.arange(0, 16, 4, dtype=torch.int16, device="cpu").view(4, 1)
    _EIGHTHS = torch.arange(0, 16, 2, dtype=torch.int16, device="cpu").view(8, 1)
    _THREE = torch.tensor(3, dtype=torch.int16, device="cpu")
    _SEVEN = torch.tensor(7, dtype=torch.int16, device="cpu")
    #: sign, exponent and first bit of the mantissa; the two bits behind
    _FIRST = torch.tensor(0x0E00 - 0x8000, dtype=torch.int16, device="cpu")
    _LAST = torch.tensor(0x0180, dtype=torch.int16, device="cpu")


def padded_columns(k: int, mode: int) -> int:
    """K rounded up to whole words."""
    return -(-k // _UNIT[mode]) * _UNIT[mode]


def pack_floats(codes: Tensor, mode: int) -> Tensor:
    """float8_e4m3fn [N, K], holding values of ``mode``, to int16 [N, K * bits / 16], K rounded up to a multiple of 4
    (fp4) or 8 (fp6). Raises ``ValueError`` for values that the mode does not have."""
    n, k = codes.shape
    padded = padded_columns(k, mode)
    out = torch.empty(n, padded * -mode // 16, dtype=torch.int16, device="cpu")
    for start in range(0, n, step := max(1, _CHUNK // padded)):
        raw = _look_up(_codes(mode), codes[start : start + step].contiguous().view(torch.uint8))
        if bool((raw == _NO_CODE).any()):
            raise ValueError(f"there are values that no {-mode}-bit float has")
        raw = F.pad(raw, (0, padded - k)).to(torch.int32)
        words = _join(raw >> (-mode - 4), 4)
        out[start : start + step] = words if mode == FP4 else torch.cat([words, _join(raw & 3, 2)], dim=1)
    return out


def unpack_floats(packed: Tensor, mode: int, k: int) -> Tensor:
    """The inverse of :func:`pack_floats`: fresh float8_e4m3fn [N, K]."""
    n = packed.shape[0]
    padded = padded_columns(k, mode)
    out = torch.empty(n, k, dtype=torch.uint8, device="cpu")
    for start in range(0, n, step := max(1, _CHUNK // padded)):
        words = packed[start : start + step].to(torch.int32)
        codes = _part(words[:, : padded // 4], 4)
        if mode == FP6:
            codes = codes << 2 | _part(words[:, padded // 4 :], 2)
        out[start : start + step] = _look_up(_bytes(mode), codes[:, :k])
    return out.view(torch.float8_e4m3fn)


def decode_floats(packed: Tensor, mode: int, halves: Tensor) -> None:
    """Fill ``halves``, int16 [N, K rounded up], with the bits of fp16: the values of the codes over ``SMALL_SCALE``."""
    rows, padded = halves.shape
    width = padded // 4
    first = packed if mode == FP4 else packed[:, :width]
    # in few calls: at a few hundred rows a call costs as much as what it does
    torch.bitwise_left_shift(first.unsqueeze(1), _FOURTHS, out=halves.view(rows, 4, width))
    halves.bitwise_right_shift_(_THREE).bitwise_and_(_FIRST)
    if mode == FP4:
        return
    rest = scratch("rest", (rows, padded), torch.int16)
    torch.bitwise_left_shift(packed[:, width:].unsqueeze(1), _EIGHTHS, out=rest.view(rows, 8, padded // 8))
    halves.bitwise_or_(rest.bitwise_right_shift_(_SEVEN).bitwise_and_(_LAST))


_NO_CODE = 0xFF


@cache
def _bytes(mode: int) -> Tensor:
    """The float8_e4m3fn bits of every code, uint8."""
    with torch.inference_mode(False):
        return torch.tensor(values(-mode), device="cpu").to(torch.float8_e4m3fn).view(torch.uint8)


@cache
def _codes(mode: int) -> Tensor:
    """The code of every float8_e4m3fn bit pattern, or ``_NO_CODE``."""
    with torch.inference_mode(False):
        table = torch.full((256,), _NO_CODE, dtype=torch.uint8, device="cpu")
        table[_bytes(mode).long()] = torch.arange(1 << -mode, dtype=torch.uint8, device="cpu")
        return table


def _look_up(table: Tensor, index: Tensor) -> Tensor:
    return table.index_select(0, index.reshape(-1).to(torch.int32)).view(index.shape)


def _join(fields: Tensor, width: int) -> Tensor:
    """int32 fields of ``width`` bits [N, K] to int16 words [N, K * width / 16], the first columns on top."""
    parts = fields.view(fields.shape[0], 16 // width, -1)
    word = parts[:, 0]
    for i in range(1, parts.shape[1]):
        word = word << width | parts[:, i]
    return word.to(torch.int16)


def _part(words: Tensor, width: int) -> Tensor:
    """The inverse of :func:`_join`, of words as int32."""
    shifts = range(16 - width, -1, -width)
    return torch.cat([words >> shift & ((1 << width) - 1) for shift in shifts], dim=1)
