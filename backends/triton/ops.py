"""Operators of the library ``quantdispatch_triton``: what torch.compile sees in place of a launch.

Triton kernels chosen by M, with a workspace, are no graph that Inductor should look into; an opaque operator also keeps
CUDA graphs simple: nothing in it waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .launch import eager_or_op

# torch leaves Library unannotated
_library: Any = torch.library.Library("quantdispatch_triton", "DEF")


def define(schema: str, function: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """Register ``function`` as an op for every device. ``fake``: makes results of the right shape and dtype."""
    name = schema.partition("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"quantdispatch_triton::{name}", fake, lib=_library)
    return eager_or_op(function, getattr(torch.ops.quantdispatch_triton, name).default)


def rows_by(columns: int | Callable[..., int]) -> Callable[..., Tensor]:
    """A fake for results [rows of the first argument, ``columns``] in the first argument's dtype."""

    def fake(x: Tensor, *args: Any) -> Tensor:
        width = columns if isinstance(columns, int) else columns(x, *args)
        return x.new_empty((x.shape[0], width))

    return fake
