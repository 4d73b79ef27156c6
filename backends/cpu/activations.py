"""Activation quantization in as few torch calls as the formulas allow.

Values equal :mod:`quantdispatch.numerics.activations` bit for bit. Codes stay floats: an int8 code (less its zero
point) and a float8 value are exact in fp32 and in bf16, and the kernels multiply floats. A call costs 1 to 4
microseconds whatever its size, which at one token is most of a small layer's time. So steps that cannot change a value
are left out (with a symmetric dynamic scale nothing can lie outside the range), and of two ways to write a step the
one that gets through torch's front end faster is taken: ``float()`` rather than ``to(torch.float32)``, a tensor rather
than a Python number as divisor.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...registry.args import QuantArgs
from .float8 import fp8_to_float

FP8_MAX = 448.0
# On the CPU and outside inference mode, wherever the first import happens.
with torch.inference_mode(False):
    INT_MAX = {bits: torch.tensor(float((1 << (bits - 1)) - 1), device="cpu") for bits in range(2, 9)}
    _FP8_MAX = torch.tensor(FP8_MAX, device="cpu")
TINY = torch.finfo(torch.float32).tiny
# below this many values torch's own scalar conversion from float8 is faster than six calls
_FEW = 4096


def quantize_int(
    x: Tensor, args: QuantArgs, scale: Tensor | None, zero_point: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """x [M, K] to (codes q as fp32 [M, K], scale fp32, zero point fp32 or ``None``), with x ~ (q - zero_point) * scale.

    ``scale`` and ``zero_point``: the stored ones of static args. Those returned are [M, 1] or [1, 1]. With group args
    a row of x is one group.
    """
    high = (1 << (args.num_bits - 1)) - 1
    wide = x.float()
    if args.dynamic and args.symmetric:
        scale = _reduce(wide.abs(), args).div_(INT_MAX[args.num_bits]).clamp_min_(TINY)
        return (wide / scale).round_(), scale, None
    if args.dynamic:
        top = _reduce(wide, args).clamp_(min=0.0)
        bottom = -_reduce(-wide, args).clamp_(min=0.0)
        scale = ((top - bottom) / (2 * high + 1)).clamp_(min=TINY)
        zero = (-1 - high - bottom / scale).round_().clamp_(-1 - high, high)
        zero = torch.nan_to_num(zero, nan=0.0)
    else:
        scale, zero = _stored(scale, "input_scale"), None
        if not args.symmetric:
            zero = _stored(zero_point, "input_zero_point")
    codes = wide / scale
    if zero is not None:
        codes += zero
    return codes.round_().clamp_(-1 - high, high), scale, zero


def seen_inputs(
    x: Tensor, args: QuantArgs | None, scale: Tensor | None, zero_point: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """What a layer multiplies its weight with, [M, K], and the scale to apply after it, [M, 1] or [1, 1].

    Inputs left alone come back as they are; those with a scale a group of columns, which cannot leave the sum, scaled,
    in fp32; all others as codes less their zero point, or float8 values, exact in bf16. ``scale`` and ``zero_point``:
    the stored ones of static args.
    """
    if args is None:
        return x, None
    if args.type == "float":
        return quantize_fp8(x, args, scale)
    if args.strategy == "group" and args.group_size:
        return _quantize_int_groups(x.float(), args, args.group_size), None
    codes, scale, zero = quantize_int(x, args, scale, zero_point)
    return (codes if zero is None else codes - zero), scale


def quantize_fp8(x: Tensor, args: QuantArgs, scale: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """x [M, K] to (float8 values as fp32 [M, K], scale fp32 [M, 1] or [1, 1]), with x ~ values * scale.

    Group scales cannot be applied after the product: there the values come back scaled, and the scale is ``None``.
    """
    wide = x.float()
    if args.strategy == "group" and args.group_size:
        return _quantize_groups(wide, args.group_size), None
    if args.dynamic:
        scale = _reduce(wide.abs(), args).div_(_FP8_MAX).clamp_min_(TINY)
        return _round_fp8(wide / scale), scale
    scale = _stored(scale, "input_scale")
    return _round_fp8((wide / scale).clamp_(-FP8_MAX, FP8_MAX)), scale


def _round_fp8(values: Tensor) -> Tensor:
    codes = values.to(torch.float8_e4m3fn)
    if torch.compiler.is_compiling() or codes.numel() < _FEW:
        return codes.float()
    return fp8_to_float(codes)


def _quantize_int_groups(wide: Tensor, args: QuantArgs, group: int) -> Tensor:
    """A group is a row of its own. A short last one is filled up with zeros, which every range contains anyway."""
    rows, k = wide.shape
    padded = F.pad(wide, (0, -k % group)) if k % group else wide
    codes, scale, zero = quantize_int(padded.reshape(-1, group), args, None, None)
    if zero is not None:
        codes -= zero
    return codes.mul_(scale).view(rows, -1)[:, :k]


def _quantize_groups(wide: Tensor, group: int) -> Tensor:
    rows, k = wide.shape
    if k % group:
        wide = F.pad(wide, (0, -k % group))
    grouped = wide.reshape(rows, -1, group)
    scale = grouped.abs().amax(dim=-1, keepdim=True).div_(_FP8_MAX).clamp_min_(TINY)
    return (_round_fp8(grouped / scale) * scale).view(rows, -1)[:, :k]


def _reduce(values: Tensor, args: QuantArgs) -> Tensor:
    """Largest of each row, [M, 1], or of all, [1, 1]."""
    return values.amax().reshape(1, 1) if args.strategy == "tensor" else values.amax(dim=-1, keepdim=True)


def _stored(value: Tensor | None, name: str) -> Tensor:
    if value is None:
        raise ValueError(f"static inputs need their stored {name}")
    return value.float().reshape(1, 1)
