"""Weights in the layout of the native CPU kernels, packed here by plain torch and by the library's own qd_pack, with
the product in float64 that its kernels must give."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import torch
from torch import Tensor

from quantdispatch.backends.cpu.native.library import Inputs, Weight

TILE = 64
DTYPES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
SCALES = {**{dtype: number for dtype, number in DTYPES.items()}, "e8m0": 3, "e4m3": 4}
INT, FP4, FP8 = 0, 1, 2
_FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)


@dataclass
class Case:
    """A weight of n outputs and k inputs with random codes, and everything about it that a kernel may have to mind."""

    n: int
    k: int
    group: int
    format: int = INT
    bits: int = 4
    scale: object = torch.bfloat16
    zero_bits: int = 0
    unit: float = 1.0
    bias: bool = False
    ordered: bool = False
    seed: int = 0
    kept: list[Tensor] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        random = torch.Generator().manual_seed(self.seed)
        self.groups = -(-self.k // self.group)
        self.codes = torch.randint(0, 1 << self.bits, (self.n, self.k), generator=random, dtype=torch.uint8)
        if self.format == FP8:
            self.codes[(self.codes & 127) == 127] = 3
        wide = torch.rand(self.n, self.groups, generator=random) + 0.05
        if self.scale == "e8m0":
            self.scales = torch.randint(118, 134, wide.shape, generator=random, dtype=torch.uint8)
        elif self.scale == "e4m3":
            self.scales = (wide * 3 * torch.sign(wide - 0.3)).to(torch.float8_e4m3fn).view(torch.uint8)
        else:
            self.scales = wide.to(self.scale)
        self.zeros = torch.randint(0, 1 << min(self.bits, self.zero_bits), wide.shape, generator=random).to(torch.uint8)
        self.bias_values = torch.randn(self.n, generator=random) if self.bias else None
        self.columns = None
        if self.ordered:
            order = torch.full((self.groups * self.group,), -1, dtype=torch.int32)
            order[: self.k] = torch.randperm(self.k, generator=random, dtype=torch.int32)
            self.columns = order[torch.randperm(len(order), generator=random)].contiguous()

    def offset(self) -> int:
        return 1 << (self.bits - 1)

    def values(self) -> Tensor:
        """Values of codes, without scales and zero points, float64 [n, k]."""
        if self.format == FP4:
            return _FP4[(self.codes & 7).long()] * (1 - 2 * (self.codes >> 3).double())
        if self.format == FP8:
            return self.codes.view(torch.float8_e4m3fn).double()
        return self.codes.double() - self.offset()

    def group_of_column(self) -> Tensor:
        if self.columns is None:
            return torch.arange(self.k) // self.group
        of = torch.empty(self.k, dtype=torch.long)
        there = (self.columns >= 0).nonzero().flatten()
        of[self.columns[there].long()] = there // self.group
        return of

    def scale_values(self) -> Tensor:
        if self.scale == "e8m0":
            return 2.0 ** (self.scales.double() - 127)
        return self.scales.view(torch.float8_e4m3fn).double() if self.scale == "e4m3" else self.scales.double()

    def zero_values(self) -> Tensor:
        return (self.zeros.double() - self.offset()) if self.zero_bits else torch.zeros(self.n, self.groups).double()

    def dense(self) -> Tensor:
        """The weight, float64 [n, k]."""
        of = self.group_of_column()
        return (self.values() - self.zero_values()[:, of]) * self.scale_values()[:, of] * self.unit

    def magnitude(self) -> Tensor:
        """What a sum's rounding errors are relative to, float64 [n, k]."""
        of = self.group_of_column()
        return ((self.values().abs() + self.zero_values().abs()[:, of]) * self.scale_values().abs()[:, of]) * self.unit

    def pack(self, library: ctypes.CDLL) -> Weight:
        """The library's form. The tensors in it live as long as the case."""
        padded = -(-self.n // 16) * 16
        slots = 16 // self.bits
        rows = self.groups * -(-self.group // (2 * slots))
        packed = torch.empty(padded, rows, dtype=torch.int32)
        weight = Weight(
            n=self.n, k=self.k, group=self.group, groups=self.groups, format=self.format, slot_bits=self.bits,
            scale_dtype=SCALES[self.scale], zero_bits=self.zero_bits, unit=self.unit, packed=packed.data_ptr(),
        )  # fmt: skip
        if self.columns is not None:
            weight.columns = self.columns.data_ptr()
        # integers are given as signed codes
        codes = (
            (self.codes ^ self.offset() if self.bits == 8 else self.codes - self.offset())
            if self.format == INT
            else self.codes
        )
        codes = codes.contiguous()
        if library.qd_pack(ctypes.byref(weight), codes.data_ptr(), packed.data_ptr(), 1):
            raise AssertionError("qd_pack refuses the case")
        scales, zeros = torch.zeros(padded, self.groups, dtype=self.scales.dtype), torch.zeros(padded, self.groups)
        scales[: self.n] = self.scales
        zeros[: self.n] = self.zeros
        weight.scale = self._keep(torch.cat([tile.T.flatten() for tile in scales.split(TILE)]))
        if self.zero_bits:
            weight.zero = self._keep(torch.cat([self._zeros(tile.T.to(torch.uint8)) for tile in zeros.split(TILE)]))
        if self.bias_values is not None:
            weight.bias = self._keep(self.bias_values)
        self._keep(packed)
        return weight

    def _zeros(self, tile: Tensor) -> Tensor:
        """[groups, width] of a tile, as stored."""
        if self.zero_bits == 8:
            return tile.flatten()
        half = tile.shape[1] // 2
        return (tile[:, :half] | tile[:, half:] << 4).flatten()

    def _keep(self, tensor: Tensor) -> int:
        tensor = tensor.contiguous()
        self.kept.append(tensor)
        return tensor.data_ptr()


def linear(library: ctypes.CDLL, weight: Weight, x: Tensor, inputs: Inputs | None = None, threads: int = 1) -> Tensor:
    """qd_linear, or with ``inputs`` qd_linear_int8; what it writes between rows is seen."""
    m, stride = x.shape[0], weight.n + 3
    y = torch.full((m, stride), 7.0, dtype=x.dtype)
    rest = (x.data_ptr(), m, x.stride(0), y.data_ptr(), stride, DTYPES[x.dtype], threads)
    if inputs is None:
        code = library.qd_linear(ctypes.byref(weight), *rest)
    else:
        code = library.qd_linear_int8(ctypes.byref(weight), ctypes.byref(inputs), *rest)
    assert code == 0, code
    assert bool((y[:, weight.n :] == 7).all()), "writes beyond a row"
    return y[:, : weight.n]
