"""Handing memory that was freed back to the system."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache


def release_free_memory() -> None:
    """Give the allocator's free pages back; does nothing where the C library has no such call.

    Converting layers allocates and frees tensors of many sizes between ones that stay, and glibc keeps the holes: up to
    three times the model. They would count as resident until something else happened to fit into them.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # another C library
        return None
