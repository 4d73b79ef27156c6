"""Codes to the native kernels' layout and back. docs/cpu-native.md describes it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....registry.facts import KernelSpec
from ..microfloat_planes import FP4 as NIBBLES
from ..microfloat_planes import _bytes as bytes_of
from ..scratch import chunk_rows
from ..tracing import recording
from . import pages, product, tiles
from .library import load
from .product import FP4, FP8, INT

#: bits of the slot that a code of so many bits is kept in
SLOTS = {1: 2, 2: 2, 3: 3, 4: 4, 5: 5, 6: 8, 7: 8, 8: 8}


@dataclass(frozen=True)
class Layout:
    """What a packed weight's size follows from. ``group``: columns of a group, K where there is one."""

    n: int
    k: int
    group: int
    groups: int
    format: int
    slot_bits: int

    @classmethod
    def of(cls, spec: KernelSpec) -> Layout:
        """Of a layer of known shape. Floats of six bits stay the e4m3 bytes that they are handed over in."""
        args = spec.weights
        assert args is not None and spec.n is not None and spec.k is not None
        group = spec.k
        if args.strategy == "block" and args.block_structure is not None:
            group = args.block_structure[1]
        elif args.strategy in ("group", "tensor_group"):
            group = args.group_size or spec.k
        groups, group = -(-spec.k // group), min(group, spec.k)
        if args.type == "float":
            return cls(spec.n, spec.k, group, groups, *((FP4, 4) if args.num_bits == 4 else (FP8, 8)))
        return cls(spec.n, spec.k, group, groups, INT, SLOTS[args.num_bits])

    @property
    def dwords(self) -> int:
        """Of an output."""
        return self.groups * -(-self.group // (16 // self.slot_bits * 2))

    def numbers(self) -> tuple[int, ...]:
        return self.n, self.k, self.group, self.groups, self.format, self.slot_bits, 2


def sorted_columns(g_idx: Tensor, groups: int) -> tuple[Tensor, int]:
    """Columns in the order of their groups, int32 [groups * width], each group filled up with -1; and the width, that
    of the largest group."""
    index = g_idx.to(torch.long)
    counts = torch.bincount(index, minlength=groups)
    width = max(int(counts.max()), 1)
    order = torch.argsort(index, stable=True)
    columns = torch.full((groups * width,), -1, dtype=torch.int32, device="cpu")
    starts = counts.cumsum(0) - counts
    within = torch.arange(g_idx.numel(), device="cpu") - starts[index[order]]
    columns[index[order] * width + within] = order.to(torch.int32)
    return columns, width


def pack_codes(codes: Tensor, layout: Layout, columns: Tensor | None) -> tuple[Tensor, bool]:
    """int8 or float8_e4m3fn [N, K], contiguous, to int32 [padded N, dwords]; and whether e4m3 codes hold a NaN. Raises
    ``ValueError`` for values that the format does not have."""
    packed = pages.empty(tiles.padded(layout.n), layout.dwords, dtype=torch.int32)
    shape = product.describe(packed, None, None, columns, None, 1.0, layout.numbers())
    bits = codes.view(torch.uint8)
    error = load().qd_pack(ctypes.byref(shape), bits.data_ptr(), packed.data_ptr(), torch.get_num_threads())
    if error == -5:
        raise ValueError("there are values that no 4-bit float has")
    if error:
        raise product.failed("qd_pack", error)
    nan = layout.format == FP8 and load().qd_any_nan(bits.data_ptr(), bits.numel())
    return packed, bool(nan)


def unpack_codes(packed: Tensor, layout: Layout, columns: Tensor | None) -> Tensor:
    """The inverse of :func:`pack_codes`: fresh codes [N, K]."""
    out = torch.empty(layout.n, layout.k, dtype=torch.uint8, device="cpu")
    shape = product.describe(packed, None, None, columns, None, 1.0, layout.numbers())
    if error := load().qd_unpack(ctypes.byref(shape), out.data_ptr(), torch.get_num_threads()):
        raise product.failed("qd_unpack", error)
    return _codes(out, layout)


def unpack_rows(packed: Tensor, layout: Layout, columns: Tensor | None, index: Tensor) -> Tensor:
    """Rows ``index`` [R], any order, of what :func:`unpack_codes` gives. Raises ``IndexError`` for a row below 0 or
    beyond the last."""
    take = _rows_op if recording() else _rows
    return _codes(take(index, packed, columns, layout.numbers()), layout)


def _rows(index: Tensor, packed: Tensor, columns: Tensor | None, numbers: Sequence[int]) -> Tensor:
    index = index.to(torch.int64).contiguous()
    out = torch.empty(index.numel(), numbers[1], dtype=torch.uint8, device="cpu")
    if index.numel() == 0:
        return out
    shape = product.describe(packed, None, None, columns, None, 1.0, tuple(numbers))
    error = load().qd_unpack_rows(ctypes.byref(shape), index.data_ptr(), index.numel(), out.data_ptr())
    if error == -4:
        raise IndexError(f"rows {int(index.min())}..{int(index.max())} of {numbers[0]}")
    if error:
        raise product.failed("qd_unpack_rows", error)
    return out


# torch leaves Library unannotated
_library: Any = torch.library.Library("quantdispatch", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(
    "native_rows(Tensor index, Tensor packed, Tensor? columns, int[] numbers) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.impl("native_rows", _rows, "CPU")
torch.library.register_fake(
    "quantdispatch::native_rows",
    lambda index, packed, columns, numbers: packed.new_empty((index.numel(), numbers[1]), dtype=torch.uint8),
    lib=_library,
)
_rows_op = torch.ops.quantdispatch.native_rows.default


def _codes(raw: Tensor, layout: Layout) -> Tensor:
    if layout.format == INT:
        return raw.view(torch.int8)
    if layout.format == FP4:
        table = bytes_of(NIBBLES)
        for start in range(0, raw.shape[0], step := chunk_rows(layout.k)):
            part = raw[start : start + step]
            part.copy_(table.index_select(0, part.reshape(-1).to(torch.int32)).view(part.shape))
    return raw.view(torch.float8_e4m3fn)
