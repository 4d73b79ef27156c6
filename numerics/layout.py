"""Widths of packed integers: how many 32-bit words a row of low-bit values takes. Plain arithmetic, no torch.

Two layouts exist on disk (compressed-tensors `pack_quantized/helpers.py`). ``dense``, since 0.18: value i starts at bit
``i * bits`` of the row and may straddle two words. ``padded``, up to 0.17: every word holds ``32 // bits`` whole values
and its top bits stay zero. For 1, 2, 4 and 8 bits both are the same.
"""

from __future__ import annotations

from typing import Literal

Layout = Literal["dense", "padded"]
LAYOUTS: tuple[Layout, ...] = ("dense", "padded")


def packed_width(size: int, bits: int, layout: str = "dense") -> int:
    """Words that ``size`` values of ``bits`` bits (1..8) take."""
    if not 1 <= bits <= 8:
        raise ValueError(f"packing takes 1 to 8 bits, not {bits}")
    if layout == "dense":
        return -(-size * bits // 32)
    if layout == "padded":
        return -(-size // (32 // bits))
    raise ValueError(f"no layout {layout!r}; there are {', '.join(LAYOUTS)}")


def largest_size(width: int, bits: int, layout: str = "dense") -> int:
    """The most values that ``width`` words can hold."""
    return width * 32 // bits if layout == "dense" else width * (32 // bits)
