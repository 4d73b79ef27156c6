"""Floats of 4 and 6 bits, packed into bytes: fp4 (e2m1) and fp6 (e2m3), as compressed-tensors stores them.

fp4: two codes a byte, the low nibble first (``compressors/nvfp4/helpers.py``). fp6: four codes in three bytes, low bits
first (``compressors/mxfp6/helpers.py``). A code is its sign, two bits of exponent with bias 1, and the mantissa (OCP
microscaling formats v1.0); neither has NaN or infinity. Unpacked, every value is held as float8_e4m3fn, which has room
for all of them and for the sign of zero.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

#: bytes unpacked at once: the index into the table takes four times that
_CHUNK = 1 << 22
_MANTISSA = {4: 1, 6: 3}


@cache
def values(bits: int) -> tuple[float, ...]:
    """The value of every code of ``bits`` (4 or 6) bits, in order; the second half is negative, -0.0 first."""
    mantissa = _MANTISSA[bits]
    steps = 1 << mantissa
    # exponent field 0 is subnormal: its step is that of field 1
    positive = [
        (code % steps + (steps if code >= steps else 0)) / steps * 2.0 ** max(code // steps - 1, 0)
        for code in range(1 << (bits - 1))
    ]
    return (*positive, *(-value for value in positive))


def unpack_floats(packed: Tensor, bits: int) -> Tensor:
    """uint8 [N, K * bits / 8] to contiguous float8_e4m3fn [N, K].

    Raises ``ValueError`` for another dtype or rank, and for rows that hold no whole number of codes.
    """
    if packed.dtype != torch.uint8 or packed.ndim != 2:
        raise ValueError(f"packed codes are uint8 of two dimensions, not {packed.dtype} {tuple(packed.shape)}")
    rows, width = packed.shape
    if bits == 6 and width % 3:
        raise ValueError(f"four fp6 codes take three bytes: {width} bytes a row hold no whole number of them")
    out = torch.empty(rows, width * 8 // bits, dtype=torch.uint8, device=packed.device)
    step = max(1, _CHUNK // max(1, width))
    unpack = {4: _unpack4, 6: _unpack6}[bits]
    for start in range(0, rows, step):
        out[start : start + step] = unpack(packed[start : start + step])
    return out.view(torch.float8_e4m3fn)


def pack_floats(codes: Tensor, bits: int) -> Tensor:
    """The inverse: float8_e4m3fn [N, K] to uint8 [N, K * bits / 8].

    Raises ``ValueError`` for values that ``bits`` bits do not have, and for a K that fills no whole number of bytes.
    """
    if codes.dtype != torch.float8_e4m3fn or codes.ndim != 2:
        raise ValueError(f"codes are float8_e4m3fn of two dimensions, not {codes.dtype} {tuple(codes.shape)}")
    per_unit = {4: 2, 6: 4}[bits]
    if codes.shape[1] % per_unit:
        raise ValueError(f"{codes.shape[1]} codes of {bits} bits fill no whole number of bytes")
    rows, k = codes.shape
    raw = codes.contiguous().view(torch.uint8)
    out = torch.empty(rows, k * bits // 8, dtype=torch.uint8, device=codes.device)
    step = max(1, _CHUNK // max(1, k))
    for start in range(0, rows, step):
        part = _look_up(_codes(bits), raw[start : start + step])
        if bool((part == _NO_CODE).any()):
            raise ValueError(f"there are values that no {bits}-bit float has")
        groups = part.view(part.shape[0], -1, per_unit)
        out[start : start + step] = (_join4(groups) if bits == 4 else _join6(groups)).flatten(1)
    return out


def round_to_fp4(x: Tensor) -> Tensor:
    """Round to the nearest fp4 value, ties to even, saturating at 6; NaN stays NaN. In the dtype of x, any shape."""
    x = x.clamp(-6.0, 6.0)
    size = x.abs()
    step = torch.where(size < 2.0, 0.5, torch.where(size < 4.0, 1.0, 2.0)).to(x.dtype)
    return (x / step).round_().mul_(step)


# -- tables, and what is done with them

_NO_CODE = 0xFF


def _as_bytes(bits: int) -> Tensor:
    """float8_e4m3fn bit patterns of all codes, uint8."""
    return torch.tensor(values(bits)).to(torch.float8_e4m3fn).view(torch.uint8)


def _pairs() -> Tensor:
    """The two fp4 codes of each byte as float8_e4m3fn, seen as one int16: low byte, low nibble."""
    table = _as_bytes(4)
    byte = torch.arange(256)
    return torch.stack([table[byte & 0xF], table[byte >> 4]], dim=1).view(torch.int16).reshape(-1)


def _codes(bits: int) -> Tensor:
    """The code of each float8_e4m3fn bit pattern, or ``_NO_CODE``."""
    table = torch.full((256,), _NO_CODE, dtype=torch.uint8)
    table[_as_bytes(bits).long()] = torch.arange(1 << bits, dtype=torch.uint8)
    return table


def _look_up(table: Tensor, index: Tensor) -> Tensor:
    flat = table.to(index.device).index_select(0, index.reshape(-1).to(torch.int32))
    return flat.view(index.shape)


def _unpack4(packed: Tensor) -> Tensor:
    return _look_up(_pairs(), packed).view(torch.uint8).view(packed.shape[0], packed.shape[1] * 2)


def _unpack6(packed: Tensor) -> Tensor:
    low, middle, high = packed.view(packed.shape[0], packed.shape[1] // 3, 3).unbind(-1)
    codes = torch.stack(
        [low & 63, low >> 6 | (middle & 15) << 2, middle >> 4 | (high & 3) << 4, high >> 2], dim=-1
    )  # fmt: skip
    return _look_up(_as_bytes(6), codes).flatten(1)


def _join4(groups: Tensor) -> Tensor:
    """uint8 [N, G, 2] to [N, G, 1]."""
    return groups[..., :1] | groups[..., 1:] << 4


def _join6(groups: Tensor) -> Tensor:
    """uint8 [N, G, 4] to [N, G, 3]."""
    first, second, third, fourth = groups.unbind(-1)
    return torch.stack([first | second << 6, second >> 2 | third << 4, third >> 4 | fourth << 2], dim=-1)
