"""How weights of few bits lie in words for the Triton kernels, and the way there and back. Plain torch, any device.

An int32 word of a row holds 32 / bits codes whose columns are ``run`` apart: bits ``[s * bits, (s + 1) * bits)`` of
word j of tile t belong to column ``(t * slots + s) * run + j``. A slot of a tile's words is thus a block of ``run``
columns side by side, which a kernel multiplies by ``run`` columns of x without moving a code to another thread.

Columns are those of x unless ``columns`` int32 [G, width] says which of x's each is (-1: none): with activation
ordering, and where groups are no multiple of 16 and are filled up to one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...numerics.microfloats import values
from ...registry.args import QuantArgs
from ...registry.facts import KernelSpec

INT, FP4, FP8 = 0, 1, 2
#: bits of the slot that a code of so many bits is kept in
SLOT_BITS = {1: 2, 2: 2, 3: 4, 4: 4, 5: 8, 6: 8, 7: 8, 8: 8}
_RUNS = (64, 32, 16)
#: columns of a tile at most: a program holds its words, and a piece of x for each slot, several times over
_TILE = 512
#: words that padding may add, as a part of all, before shorter runs are taken
_WASTE = 1 / 16
#: rows that are packed at a time: the steps between need several bytes a code
_ROWS = 1024


@dataclass(frozen=True)
class Layout:
    """``inner``: columns as kernels count them, groups filled up. ``group``: columns of one, 0 where all are one."""

    n: int
    k: int
    form: int
    bits: int
    groups: int
    inner: int
    group: int
    run: int

    @property
    def slots(self) -> int:
        return 32 // self.bits

    @property
    def tiles(self) -> int:
        return -(-self.inner // (self.run * self.slots))

    @property
    def words(self) -> int:
        """Of a row."""
        return self.tiles * self.run

    @property
    def whole(self) -> bool:
        return self.inner == self.words * self.slots

    def numbers(self) -> list[int]:
        """What an operator takes."""
        return [self.n, self.k, self.form, self.bits, self.groups, self.inner, self.group, self.run]


def group_of(args: QuantArgs, k: int) -> int:
    """Columns that share a scale, 0 where all do."""
    size = args.block_structure[1] if args.strategy == "block" and args.block_structure else args.group_size
    return size if args.strategy in ("block", "group", "tensor_group") and size and size < k else 0


def layout_of(spec: KernelSpec, width: int | None = None) -> Layout:
    """Of a layer of known shape. ``width``: of the groups of ``columns``, where there are any."""
    args = spec.weights
    assert args is not None and spec.n is not None and spec.k is not None
    form, bits = INT, SLOT_BITS[args.num_bits]
    if args.type == "float":
        # six bits stay the e4m3 bytes that they are handed over in
        form, bits = (FP4, 4) if args.num_bits == 4 else (FP8, 8)
    group = group_of(args, spec.k)
    groups = -(-spec.k // group) if group else 1
    if width is not None:
        inner, group = groups * width, width if groups > 1 else 0
    else:
        inner = spec.k
    return Layout(spec.n, spec.k, form, bits, groups, inner, group, _run(inner, group, 32 // bits))


def _run(inner: int, group: int, slots: int) -> int:
    for run in _RUNS[:-1]:
        padded = -(-inner // (run * slots)) * run * slots
        if run * slots <= _TILE and group % run == 0 and padded - inner <= inner * _WASTE:
            return run
    return _RUNS[-1]


def columns_of(spec: KernelSpec, g_idx: Tensor | None) -> Tensor | None:
    """int32 [G, width]: x's columns in the order of their groups, or ``None`` where that is the order of x and groups
    are multiples of 16."""
    assert spec.weights is not None and spec.k is not None
    group = group_of(spec.weights, spec.k)
    if not group or (g_idx is None and group % 16 == 0):
        return None
    groups = -(-spec.k // group)
    index = torch.arange(spec.k) // group if g_idx is None else g_idx.to("cpu", torch.long)
    counts = torch.bincount(index, minlength=groups)
    width = -(-int(counts.max()) // 16) * 16
    order = torch.argsort(index, stable=True)
    within = torch.arange(spec.k) - (counts.cumsum(0) - counts)[index[order]]
    columns = torch.full((groups, width), -1, dtype=torch.int32)
    columns[index[order], within] = order.to(torch.int32)
    return columns if g_idx is None else columns.to(g_idx.device)


def pack_codes(codes: Tensor, layout: Layout, columns: Tensor | None) -> Tensor:
    """int8 or float8_e4m3fn [N, K] to int32 words [N, words]. Raises ``ValueError`` for values that e2m1 lacks."""
    raw = codes.view(torch.uint8) if layout.form else codes
    packed = torch.empty(layout.n, layout.words, dtype=torch.int32, device=codes.device)
    source = None if columns is None else columns.reshape(-1).to(codes.device)
    shifts = torch.arange(layout.slots, dtype=torch.int32, device=codes.device) * layout.bits
    for start in range(0, layout.n, _ROWS):
        part = _numbers(raw[start : start + _ROWS], layout)
        if source is not None:
            part = torch.where(source >= 0, part[:, source.clamp(min=0).long()], 0)
        part = torch.nn.functional.pad(part, (0, layout.words * layout.slots - layout.inner))
        slots = part.view(-1, layout.tiles, layout.slots, layout.run) << shifts[:, None]
        # the slots share no bit, so that their sum, which wraps like a word does, is their union
        packed[start : start + _ROWS] = slots.sum(2, dtype=torch.int32).flatten(1)
    return packed


def unpack_codes(packed: Tensor, layout: Layout, columns: Tensor | None) -> Tensor:
    """The inverse of :func:`pack_codes`."""
    dtype = torch.float8_e4m3fn if layout.form else torch.int8
    codes = torch.empty(layout.n, layout.k, dtype=torch.uint8 if layout.form else torch.int8, device=packed.device)
    shifts = torch.arange(layout.slots, dtype=torch.int32, device=packed.device) * layout.bits
    mask = (1 << layout.bits) - 1
    for start in range(0, layout.n, _ROWS):
        words = packed[start : start + _ROWS].view(-1, layout.tiles, 1, layout.run)
        part = ((words >> shifts[:, None]) & mask).flatten(1)[:, : layout.inner]
        if columns is not None:
            source = columns.reshape(-1).to(packed.device)
            ordered = torch.empty(part.shape[0], layout.k, dtype=part.dtype, device=part.device)
            ordered[:, source[source >= 0].long()] = part[:, source >= 0]
            part = ordered
        codes[start : start + _ROWS] = _stored(part, layout)
    return codes.view(dtype)


def _numbers(raw: Tensor, layout: Layout) -> Tensor:
    """Codes as the unsigned numbers of a slot, int32."""
    if layout.form == INT:
        return raw.to(torch.int32) + (1 << (layout.bits - 1))
    if layout.form == FP8:
        return raw.to(torch.int32)
    table = torch.full((256,), 255, dtype=torch.int32, device=raw.device)
    table[_fp4_bytes(raw.device).long()] = torch.arange(16, dtype=torch.int32, device=raw.device)
    numbers = table[raw.long()]
    if bool((numbers == 255).any()):
        raise ValueError("there are values that no 4-bit float has")
    return numbers


def _stored(numbers: Tensor, layout: Layout) -> Tensor:
    if layout.form == INT:
        return (numbers - (1 << (layout.bits - 1))).to(torch.int8)
    if layout.form == FP8:
        return numbers.to(torch.uint8)
    return _fp4_bytes(numbers.device)[numbers.long()]


def _fp4_bytes(device: torch.device) -> Tensor:
    """The e4m3 byte of each e2m1 code."""
    return torch.tensor(values(4), device=device).to(torch.float8_e4m3fn).view(torch.uint8)
