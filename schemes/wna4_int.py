"""``wNa4_int``: integer weights and int4 inputs, codes -8 to 7. y = sx * ((qx - zx) @ ((q - z) * s).T) + bias."""

from __future__ import annotations

from typing import ClassVar

from .integer import IntegerScheme


class WNA4Int(IntegerScheme):
    """``wNa8_int`` with four bits for the inputs; what is stored is the same."""

    name: ClassVar[str] = "wNa4_int"
