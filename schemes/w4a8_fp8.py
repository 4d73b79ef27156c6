"""``w4a8_fp8``: int4 weights and float8_e4m3 inputs. y = sx * (qx @ ((q - z) * s).T) + bias.

Inputs are quantized as in ``w8a8_fp8``: per token, or one scale for all, dynamic or stored as ``input_scale``.
"""

from __future__ import annotations

from typing import ClassVar

from .integer import IntegerScheme


class W4A8Fp8(IntegerScheme):
    """Weights as in ``wNa16_int``, packed or stored as int8."""

    name: ClassVar[str] = "w4a8_fp8"
