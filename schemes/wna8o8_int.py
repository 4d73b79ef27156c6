"""``wNa8o8_int``: integer weights, static int8 inputs and static int8 outputs.

y = so * (clamp(round((sx * ((qx - zx) @ ((q - z) * s).T) + bias) / so + zo)) - zo), with ``output_scale`` so and, when
asymmetric, ``output_zero_point`` zo.
"""

from __future__ import annotations

from typing import ClassVar

from .integer import IntegerScheme


class WNA8O8Int(IntegerScheme):
    """``wNa8_int`` whose outputs take one of 256 values as well."""

    name: ClassVar[str] = "wNa8o8_int"
