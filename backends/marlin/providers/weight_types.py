"""How Marlin's providers name the type of a weight: one integer, from the fields of vLLM's ``ScalarType``
(``csrc/core/scalar_type.hpp``), which SGLang shares."""

from __future__ import annotations

from dataclasses import dataclass

_IEEE, _NO_NAN, _MAX_NAN = 1, 0, 2


def _number(exponent: int, mantissa: int, signed: bool, bias: int, finite: bool, nan: int) -> int:
    """Fields of 8, 8, 1, 32, 1 and 8 bits, the first lowest."""
    value, offset = 0, 0
    for field, width in ((exponent, 8), (mantissa, 8), (int(signed), 1), (bias, 32), (int(finite), 1), (nan, 8)):
        value |= field << offset
        offset += width
    return value


@dataclass(frozen=True)
class WeightType:
    """``id``: as the ops take it. SGLang's functions take an object and read its ``id``, so this is one."""

    name: str
    bits: int
    id: int


UINT4 = WeightType("uint4", 4, _number(0, 4, False, 0, False, _IEEE))
UINT4B8 = WeightType("uint4b8", 4, _number(0, 4, False, 8, False, _IEEE))
UINT8B128 = WeightType("uint8b128", 8, _number(0, 8, False, 128, False, _IEEE))
FLOAT8 = WeightType("float8_e4m3fn", 8, _number(4, 3, True, 0, True, _MAX_NAN))
FLOAT4 = WeightType("float4_e2m1f", 4, _number(2, 1, True, 0, True, _NO_NAN))
