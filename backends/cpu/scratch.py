"""Scratch memory that is reused from call to call.

A fresh buffer for dequantized weights costs more than the arithmetic on it (page faults), so each thread keeps one flat
buffer a use and dtype and hands out views. Nothing here is part of a model: it is never pickled, copied or saved.
"""

from __future__ import annotations

import math
import threading

import torch
from torch import Tensor

#: elements of a weight that are dequantized at a time: 1 MiB in fp32, so that the passes over it stay in cache
CHUNK = 1 << 18

_local = threading.local()


def scratch(use: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialised CPU tensor of ``shape``, valid until this thread asks for the same ``use`` and dtype again."""
    buffers: dict[tuple[str, torch.dtype], Tensor] | None = getattr(_local, "buffers", None)
    if buffers is None:
        buffers = _local.buffers = {}
    size = math.prod(shape)
    flat = buffers.get((use, dtype))
    if flat is None or flat.numel() < size:
        # outside inference mode: a buffer born inside could not be written by a later call outside of it
        with torch.inference_mode(False):
            flat = buffers[use, dtype] = torch.empty(size, dtype=dtype)
    return flat[:size].view(shape)


def chunk_rows(width: int, multiple: int = 1) -> int:
    """Rows of ``width`` elements to handle at a time: at least ``multiple``, and a multiple of it."""
    return max(CHUNK // max(width, 1) // multiple, 1) * multiple
