"""``wNa8_int``: integer weights and int8 inputs. y = sx * ((qx - zx) @ ((q - z) * s).T) + bias.

Inputs have one static scale for all (``input_scale``, and ``input_zero_point`` when asymmetric), or dynamic scales per
token, per group of columns or per tensor, for which nothing is stored.
"""

from __future__ import annotations

from typing import ClassVar

from .integer import IntegerScheme


class WNA8Int(IntegerScheme):
    """W8A8 and below: weights as in ``wNa16_int``, packed or stored as int8."""

    name: ClassVar[str] = "wNa8_int"
