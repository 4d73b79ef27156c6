"""``wNa16_int``: integer weights, inputs left as they are. y = x @ ((q - z) * s).T + bias."""

from __future__ import annotations

from typing import ClassVar

from .integer import IntegerScheme


class WNA16Int(IntegerScheme):
    """1 to 8 bits, symmetric or asymmetric, scales per tensor, channel, group or block; columns of groups in order or
    through a g_idx."""

    name: ClassVar[str] = "wNa16_int"
