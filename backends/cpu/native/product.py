"""The native weight-only product as one call, and as an operator of the library ``quantdispatch``."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from ....registry.errors import QuantDispatchError
from .library import Weight, load

#: numbers of abi.h: qd_dtype
DTYPES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
SCALES = {**DTYPES, torch.uint8: 3, torch.float8_e4m3fn: 4}
E4M3 = 4
#: qd_format
INT, FP4, FP8 = 0, 1, 2
_WIDE = 8
#: described weights that are remembered; a model has a few hundred
_MOST = 1 << 14

_described: dict[int, tuple[tuple[Any, ...], Any]] = {}


def describe(
    packed: Tensor | None,
    scale: Tensor | None,
    zero: Tensor | None,
    columns: Tensor | None,
    addend: Tensor | None,
    unit: float,
    numbers: tuple[int, ...],
) -> Weight:
    """``qd_weight`` of tensors that the caller keeps alive. ``numbers``: n, k, group, groups, format, slot bits, scale
    dtype (of abi.h)."""
    n, k, group, groups, form, slot_bits, scale_dtype = numbers
    padded = -(-n // 16) * 16
    zero_bits = 0 if zero is None else 8 if zero.numel() == padded * groups else 4
    pointers = [None if tensor is None else tensor.data_ptr() for tensor in (packed, scale, zero, columns, addend)]
    return Weight(n, k, group, groups, form, slot_bits, scale_dtype, zero_bits, unit, 0, *pointers)


def described(
    packed: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    columns: Tensor | None,
    addend: Tensor | None,
    factor: float,
    numbers: tuple[int, ...],
) -> Any:
    """Pointer to :func:`describe`'s answer, kept from call to call for as long as addresses and sizes are the same."""
    key = (
        scale.data_ptr(),
        None if zero is None else (zero.data_ptr(), zero.numel()),
        None if columns is None else columns.data_ptr(),
        None if addend is None else addend.data_ptr(),
        factor,
        numbers,
    )
    place = packed.data_ptr()
    found = _described.get(place)
    if found is None or found[0] != key:
        if len(_described) >= _MOST:
            _described.clear()
        weight = describe(packed, scale, zero, columns, addend, factor, numbers)
        found = _described[place] = key, ctypes.pointer(weight)
    return found[1]


def multiply(
    x: Tensor,
    packed: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    columns: Tensor | None,
    addend: Tensor | None,
    global_scale: Tensor | None,
    numbers: tuple[int, ...],
    factor: float,
    wide: bool,
) -> Tensor:
    """x [..., K] times the transpose of the packed weight, plus ``addend`` fp32 [N]: [..., N] in x's dtype, or in fp32
    if ``wide``. All scales are multiplied by ``factor`` and divided by ``global_scale`` [1].

    Raises ``QuantDispatchError`` where the weight is none that the kernels read.
    """
    n, k = numbers[0], numbers[1]
    # a third of the time of torch.empty with a dtype and a device, and as much as the product of a small layer takes
    y = x.new_empty((*x.shape[:-1], n), dtype=torch.float32) if wide else x.new_empty((*x.shape[:-1], n))
    if x.is_neg():
        x = x.resolve_neg()
    if x.is_contiguous():
        stride = k
    elif x.ndim == 2 and x.stride(1) == 1:
        stride = x.stride(0)
    else:
        x, stride = x.contiguous(), k
    rows = x.numel() // k
    if rows == 0:
        return y
    if global_scale is not None:
        factor = factor / global_scale.item()
    weight = described(packed, scale, zero, columns, addend, factor, numbers)
    dtype = DTYPES[x.dtype]
    error = load().qd_linear(
        weight, x.data_ptr(), rows, stride, y.data_ptr(), n, dtype | _WIDE if wide else dtype, torch.get_num_threads()
    )
    if error:
        raise failed("qd_linear", error)
    return y


def failed(function: str, error: int) -> QuantDispatchError:
    """What a function of the library refused with."""
    reasons = {-9: "not enough memory", -5: "codes that the format does not have", -4: "rows that are not there"}
    return QuantDispatchError(
        f"a native kernel refused its arguments: {reasons.get(error, 'a weight of no known layout')}",
        field=function, observed=error, required=0, code="QD804",
    )  # fmt: skip


# torch leaves Library unannotated
_library: Any = torch.library.Library("quantdispatch", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(
    "native_mm(Tensor x, Tensor packed, Tensor scale, Tensor? zero, Tensor? columns, Tensor? addend,"
    " Tensor? global_scale, int[] numbers, float factor, bool wide) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _multiply(*args: Any) -> Tensor:
    *tensors, numbers, factor, wide = args
    x, packed, scale, zero, columns, addend, global_scale = tensors
    return multiply(x, packed, scale, zero, columns, addend, global_scale, tuple(numbers), factor, wide)


def _fake(x: Tensor, *args: Any) -> Tensor:
    *_, numbers, _, wide = args
    return x.new_empty((*x.shape[:-1], numbers[0]), dtype=torch.float32 if wide else x.dtype)


_library.impl("native_mm", _multiply, "CPU")
torch.library.register_fake("quantdispatch::native_mm", _fake, lib=_library)
native_mm = torch.ops.quantdispatch.native_mm.default
