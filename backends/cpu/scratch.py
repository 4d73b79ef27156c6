"""Scratch memory that is reused from call to call.

A fresh buffer for dequantized weights costs more than the arithmetic on it (page faults), so each thread keeps one flat
buffer a use and dtype and hands out views. Nothing here is part of a model: it is never pickled, copied or saved.
"""

from __future__ import annotations

import math
import threading

import torch
from torch import Tensor

#: elements of a weight that are dequantized at a time: 2 MiB in fp32, so that the passes over it stay in cache
CHUNK = 1 << 19

_local = threading.local()
#: the key under which the whole buffer stands among its views
_WHOLE = (-1,)
_MOST_VIEWS = 256


def scratch(use: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialised CPU tensor of ``shape``, valid until this thread asks for the same ``use`` and dtype again."""
    views: dict[tuple[str, torch.dtype], dict[tuple[int, ...], Tensor]] | None = getattr(_local, "views", None)
    if views is None:
        views = _local.views = {}
    shaped = views.setdefault((use, dtype), {})
    found = shaped.get(shape)
    return _view(shaped, shape, dtype) if found is None else found


def _view(shaped: dict[tuple[int, ...], Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A new view, of a larger buffer if need be. The views are kept: making one costs as much as a short pass."""
    size = math.prod(shape)
    flat = shaped.get(_WHOLE)
    # outside inference mode: what is born inside could not be written by a later call outside of it
    with torch.inference_mode(False):
        if flat is None or flat.numel() < size:
            shaped.clear()
            flat = shaped[_WHOLE] = torch.empty(size, dtype=dtype, device="cpu")
        elif len(shaped) > _MOST_VIEWS:
            shaped.clear()
            shaped[_WHOLE] = flat
        view = shaped[shape] = flat[:size].view(shape)
    return view


def chunk_rows(width: int, multiple: int = 1) -> int:
    """Rows of ``width`` elements to handle at a time: at least ``multiple``, and a multiple of it."""
    return max(CHUNK // max(width, 1) // multiple, 1) * multiple
