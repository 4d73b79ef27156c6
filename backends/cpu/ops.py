"""Operators of the library ``quantdispatch``, so that torch.compile sees one node where eager code writes to scratch.

Defined through :class:`torch.library.Library` rather than ``custom_op``, whose wrapper costs 20 microseconds a call. In
eager mode kernels call the Python functions directly; :func:`choose` picks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import bitplanes, chunked, int4_layout, u8s8

# torch leaves Library unannotated
_library: Any = torch.library.Library("quantdispatch", "DEF")  # type: ignore[no-untyped-call]


def _define(
    schema: str, function: Callable[..., Tensor], width: Callable[..., int], dtype: torch.dtype = torch.float32
) -> Callable[..., Tensor]:
    """Register an op whose result is ``dtype`` [rows of its first argument, ``width(...)``]."""
    name = schema.partition("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))

    def fake(x: Tensor, *args: Any) -> Tensor:
        return x.new_empty((x.shape[0], width(x, *args)), dtype=dtype)

    _library.impl(name, function, "CPU")
    torch.library.register_fake(f"quantdispatch::{name}", fake, lib=_library)
    op: Callable[..., Tensor] = getattr(torch.ops.quantdispatch, name).default

    def choose(*args: Any) -> Tensor:
        return op(*args) if torch.compiler.is_compiling() else function(*args)

    return choose


chunked_mm = _define(
    "chunked_mm(Tensor x, Tensor codes, Tensor? scale, Tensor? zero, Tensor? columns, int bits, int block_rows,"
    " int block_columns) -> Tensor",
    chunked.chunked_mm,
    lambda x, codes, *_: codes.shape[0],
)
u8s8_mm = _define(
    "u8s8_mm(Tensor x, Tensor codes) -> Tensor",
    u8s8.u8s8_mm,
    lambda x, codes: codes.shape[0],
)
int4_rows = _define(
    "int4_rows(Tensor index, Tensor packed) -> Tensor",
    int4_layout.rows,
    lambda index, packed: packed.shape[1] * 2,
    torch.uint8,
)
plane_codes = _define(
    "plane_codes(Tensor packed, int bits, int k) -> Tensor",
    bitplanes.codes_of,
    lambda packed, bits, k: k,
    torch.int8,
)
