"""Memory for packed weights on large pages.

A token reads every weight once, so each page of 4 KB costs a look-up in the page tables that nothing amortizes. Linux
gives pages of 2 MB to whoever asks for them, but only within one mapping: weights of many layers are laid side by side
in mappings of some megabytes, each a tensor with a storage of its own. A mapping goes when its last tensor does.
"""

from __future__ import annotations

import mmap
import threading
from functools import cache
from math import prod
from pathlib import Path

import torch
from torch import Tensor

_PAGE = 2 << 20
#: of a mapping: what is lost at most where layers are freed one by one
_MAPPING = 32 << 20
#: bytes below which a tensor is not worth it
_LEAST = 16 << 10
_LINE = 64
_lock = threading.Lock()
_open: list[tuple[mmap.mmap, int, int]] = []  # at most one: the mapping, its first free byte, and its end


def empty(*shape: int, dtype: torch.dtype) -> Tensor:
    """Like ``torch.empty`` on the CPU, 64-byte aligned."""
    size = prod(shape) * dtype.itemsize
    # outside of inference mode, so that it can be used in and out of it
    with torch.inference_mode(False):
        if size < _LEAST or not _large_pages():
            return torch.empty(shape, dtype=dtype, device="cpu")
        with _lock:
            mapping, start = _take(-(-size // _LINE) * _LINE)
        return torch.frombuffer(mapping, dtype=dtype, count=prod(shape), offset=start).view(shape)


def moved(tensor: Tensor) -> Tensor:
    """A contiguous copy, or the tensor itself where it is too small or there are no large pages."""
    if tensor.numel() * tensor.itemsize < _LEAST or not _large_pages():
        return tensor
    return empty(*tensor.shape, dtype=tensor.dtype).copy_(tensor)


def _take(size: int) -> tuple[mmap.mmap, int]:
    """``size`` bytes: the mapping and where in it."""
    if not _open or _open[0][2] - _open[0][1] < size:
        whole = max(_MAPPING, -(-size // _PAGE) * _PAGE)
        mapping = mmap.mmap(-1, whole + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        start = -torch.frombuffer(mapping, dtype=torch.uint8, count=1).data_ptr() % _PAGE
        mapping.madvise(mmap.MADV_HUGEPAGE, 0, whole + _PAGE)
        _open[:] = [(mapping, start, start + whole)]
    mapping, start, end = _open[0]
    _open[0] = mapping, start + size, end
    return mapping, start


@cache
def _large_pages() -> bool:
    """Whether the system gives them to who asks."""
    try:
        setting = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="ascii")
    except OSError:
        return False
    return hasattr(mmap, "MADV_HUGEPAGE") and "[never]" not in setting
