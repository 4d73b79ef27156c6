"""Routed experts as one operator, which torch.compile does not look into.

Which experts run is decided by values, and that ends a compiled graph: with the experts of every layer in graphs of
their own, each new choice of experts would be compiled anew. The operator calls the module as it is by then, so hooks
on single experts, loading and moving keep working in compiled models.
"""

from __future__ import annotations

from itertools import count
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
from torch import Tensor


class Layer(Protocol):
    def compute(self, x: Tensor, index: Tensor, weights: Tensor) -> Tensor: ...


_layers: WeakValueDictionary[int, Layer] = WeakValueDictionary()
_numbers = count()


def enter(layer: Layer) -> int:
    """A number for :func:`call`, as long as the layer lives. Copies need one of their own."""
    number = next(_numbers)
    _layers[number] = layer
    return number


def _compute(x: Tensor, index: Tensor, weights: Tensor, layer: int) -> Tensor:
    # a new tensor, for an operator's result must not be its input
    return _layers[int(layer)].compute(x, index, weights)


def _shape(x: Tensor, index: Tensor, weights: Tensor, layer: int) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


# torch leaves Library unannotated
_library: Any = torch.library.Library("quantdispatch", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(
    "experts(Tensor x, Tensor index, Tensor weights, SymInt layer) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,)
)
for _key in ("CPU", "CUDA"):
    _library.impl("experts", _compute, _key)
torch.library.register_fake("quantdispatch::experts", _shape, lib=_library)
call = torch.ops.quantdispatch.experts.default
