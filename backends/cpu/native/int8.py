"""``cpu/native_int8``: integer weights times activations quantized to 2 to 8 bits, by the kernels in C++.

Quantization is part of the call: codes equal those of :mod:`quantdispatch.numerics.activations` bit for bit, and the
sums of their products are exact integers up to the scales.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ....numerics.activations import quantize_outputs
from ....registry.args import QuantArgs
from ....registry.errors import ConfigError, QuantDispatchError
from ....registry.facts import KernelSpec
from ....registry.operands import Operands
from ..tracing import recording
from . import product
from .library import Inputs, load
from .linear import NativeLinear

_WIDE = 8


class NativeInt8Linear(NativeLinear):
    """State: as :class:`.linear.NativeLinear`'s, and the stored ``input_scale`` and ``input_zero_point``."""

    def __init__(self, spec: KernelSpec) -> None:
        super().__init__(spec)
        args = self.inputs
        if args is None:
            raise ValueError(f"the kernel is for quantized inputs, not {spec}")
        #: bits, symmetric, dynamic, one scale for all rows
        self.how = (args.num_bits, int(args.symmetric), int(bool(args.dynamic)), int(args.strategy == "tensor"))

    def stack(
        self, layers: Sequence[tuple[NativeLinear, Mapping[str, Tensor]]]
    ) -> tuple[NativeLinear, dict[str, Tensor], list[dict[str, Tensor]]] | None:
        stacked = super().stack(layers)
        return None if stacked is None else (NativeInt8Linear(stacked[0].spec), *stacked[1:])

    def apply(self, x: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """x [..., K] to [..., N] in x's dtype, bias added and outputs quantized.

        For inference: raises ``QuantDispatchError`` where a gradient would have to flow through, and for a dtype,
        device or K that this kernel was not bound for; ``ValueError`` where static inputs lack their stored scale.
        """
        self.check(x)
        scale, columns = state["scale"], state.get("columns")
        layout = self.layout
        group = layout.group if columns is None else columns.shape[0] // layout.groups
        numbers = (self.n, self.k, group, layout.groups, layout.format, layout.slot_bits, product.SCALES[scale.dtype])
        function = native_int8_mm if recording() else multiply
        y: Tensor = function(
            x, state["packed"], scale, state.get("zero"), columns, state.get("addend"),
            state.get("input_scale"), state.get("input_zero_point"), numbers, self.how, self.outputs is not None,
        )  # fmt: skip
        if self.outputs is None:
            return y
        if y.numel():
            y = quantize_outputs(y, self.outputs, state.get("output_scale"), state.get("output_zero_point"))
        return y.to(x.dtype)


class AllowedInt8Linear(NativeInt8Linear):
    """``cpu/native_int8_allowed``: layers whose scheme leaves inputs alone, of a user who allowed int8 activations."""

    def __init__(self, spec: KernelSpec) -> None:
        super().__init__(replace(spec, inputs=QuantArgs(strategy="token", dynamic=True)))


def multiply(
    x: Tensor,
    packed: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    columns: Tensor | None,
    addend: Tensor | None,
    input_scale: Tensor | None,
    input_zero_point: Tensor | None,
    numbers: tuple[int, ...],
    how: tuple[int, ...],
    wide: bool,
) -> Tensor:
    """x [..., K], quantized, times the transpose of the packed weight, plus ``addend`` fp32 [N]: [..., N] in x's dtype,
    or in fp32 if ``wide``. ``how``: bits, symmetric, dynamic, one scale for all rows.

    Raises ``ValueError`` where a stored scale or zero point is missing, ``QuantDispatchError`` where the library
    refuses the weight or the zero point.
    """
    n, k = numbers[0], numbers[1]
    shape = (*x.shape[:-1], n)
    if x.is_neg():
        x = x.resolve_neg()
    # without a dtype it is twice as fast
    y = x.new_empty(shape, dtype=torch.float32) if wide else x.new_empty(shape)
    if x.is_contiguous():
        stride = k
    elif x.ndim == 2 and x.stride(1) == 1:
        stride = x.stride(0)
    else:
        x, stride = x.contiguous(), k
    rows = x.numel() // k
    if rows == 0:
        return y
    if how[2]:
        inputs = _inputs(how, 0.0, 0.0)
    else:
        offset = 0.0 if how[1] else _stored(input_zero_point, "input_zero_point")
        inputs = _inputs(how, _stored(input_scale, "input_scale"), offset)
    dtype = product.DTYPES[x.dtype]
    error = load().qd_linear_int8(
        product.described(packed, scale, zero, columns, addend, 1.0, numbers), inputs, x.data_ptr(), rows, stride,
        y.data_ptr(), n, dtype | _WIDE if wide else dtype, torch.get_num_threads(),
    )  # fmt: skip
    if error:
        raise product.failed("qd_linear_int8", error)
    return y


@lru_cache(maxsize=1 << 12)
def _inputs(how: tuple[int, ...], scale: float, zero_point: float) -> Any:
    return ctypes.pointer(Inputs(*how, scale, zero_point))


def _stored(value: Tensor | None, name: str) -> float:
    if value is None:
        raise ValueError(f"static inputs need their stored {name}")
    return float(value.item())


def probe() -> str | None:
    """``None`` if the library can be loaded and its sums are those of integers, else the reason."""
    codes = torch.arange(20 * 96, device="cpu").mul_(37).remainder_(256).sub_(128).to(torch.int8).view(20, 96)
    x = torch.arange(9 * 96, device="cpu").mul_(53).remainder_(255).sub_(127).float().view(9, 96)
    try:
        for bits, rows in ((8, 1), (8, 9), (4, 1), (4, 9)):
            small = codes >> (8 - bits)
            weights, inputs = QuantArgs(num_bits=bits, group_size=-1), QuantArgs(strategy="tensor")
            spec = KernelSpec("linear", "linear", "wNa8_int", weights, inputs, None, 20, 96, "float32", 96)
            impl, one = NativeInt8Linear(spec), torch.ones(1, device="cpu")
            state = impl.pack(Operands(small, torch.ones(20, 1, device="cpu"), input_scale=one))
            # below 2^24: exact in fp32
            wrong = impl.apply(x[:rows], state) - x[:rows] @ small.float().t()
            if (off := wrong.abs().max().item()) != 0:
                return f"the native int8 kernels are off by {off} at {bits} bits and {rows} rows"
    except ConfigError:  # an instruction set that is not there: no other kernel is to hide it
        raise
    except QuantDispatchError as error:
        return str(error)
    return None


# torch leaves Library unannotated
_library: Any = torch.library.Library("quantdispatch", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(
    "native_int8_mm(Tensor x, Tensor packed, Tensor scale, Tensor? zero, Tensor? columns, Tensor? addend,"
    " Tensor? input_scale, Tensor? input_zero_point, int[] numbers, int[] how, bool wide) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _multiply(x: Tensor, *args: Any) -> Tensor:
    numbers, how, wide = args[-3:]
    weight: tuple[Any, Any, Any, Any, Any, Any, Any] = args[:-3]
    return multiply(x, *weight, tuple(numbers), tuple(how), wide)


def _fake(x: Tensor, *args: Any) -> Tensor:
    *_, numbers, _, wide = args
    return x.new_empty((*x.shape[:-1], numbers[0]), dtype=torch.float32 if wide else x.dtype)


_library.impl("native_int8_mm", _multiply, "CPU")
torch.library.register_fake("quantdispatch::native_int8_mm", _fake, lib=_library)
native_int8_mm = torch.ops.quantdispatch.native_int8_mm.default
