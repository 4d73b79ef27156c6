"""Quantization of activations: the one formula of each kind that every backend must agree with.

All in fp32, whatever the dtype of x. Integers: round half to even, then clamp to the whole range of the type. Float8:
clamp to +-448, then the cast's own round half to even. Symmetric scales are absmax over the largest positive value (127
for int8, 7 for int4, 448 for e4m3). compressed-tensors' own fake-quantization divides by half the range (127.5, 7.5)
and takes one scale for a 2-D token input; engines and hardware do not, and neither does this.

A NaN or an infinity in x makes a dynamic scale NaN or infinite, so what shares the scale comes out as no finite number.
With a static scale an infinity saturates; a NaN survives in float8 and has no integer.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..registry.args import QuantArgs

FP8_MAX = 448.0
# The smallest normal fp32: a row of zeros gets this scale and stays zero instead of becoming 0 / 0.
_TINY = torch.finfo(torch.float32).tiny


def quantize_int(
    x: Tensor, args: QuantArgs, scale: Tensor | None = None, zero_point: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """x [..., K] to (q int8 [..., K], scale fp32, zero_point int32 or ``None``), with x ~ (q - zero_point) * scale.

    Static args take ``scale`` and ``zero_point`` of one element each; dynamic ones make them: token, one a row
    ([..., 1]); tensor, one in all ([1, ..., 1]); group, one for ``group_size`` columns of a row ([..., G], the last
    group may be short; see :func:`expand_groups`). Asymmetric: the range always contains 0, so 0 is exact; q =
    clamp(round(x / scale + zero_point)). Raises ``ValueError`` for args that are not of this kind.
    """
    if args.type != "int" or not 2 <= args.num_bits <= 8:
        raise ValueError(f"not int args of 2 to 8 bits: {args}")
    low, high = -(1 << (args.num_bits - 1)), (1 << (args.num_bits - 1)) - 1
    wide = x.to(torch.float32)
    if not args.dynamic:
        scale, zero_point = _static(wide, args, scale, zero_point)
    elif args.strategy == "group" and args.group_size:
        wide = _grouped(wide, args.group_size)
        scale, zero_point = _dynamic_int(wide, args, low, high)
    else:
        scale, zero_point = _dynamic_int(wide, args, low, high)
    scaled = wide / scale
    if zero_point is not None:
        scaled += zero_point
    q = scaled.round_().clamp_(low, high).to(torch.int8)
    if wide.ndim == x.ndim:
        return q, scale, zero_point
    return q.flatten(-2)[..., : x.shape[-1]], scale.squeeze(-1), None if zero_point is None else zero_point.squeeze(-1)


def quantize_fp8(x: Tensor, args: QuantArgs, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x [..., K] to (q float8_e4m3fn [..., K], scale fp32), with x ~ q * scale.

    The scale is [..., 1] (token), [1, ..., 1] (tensor, static or dynamic) or [..., ceil(K / group_size)] (group,
    dynamic; the last group may be short). NaN stays NaN. Raises ``ValueError`` for args that are not of this kind.
    """
    if args.type != "float" or args.num_bits != 8 or not args.symmetric:
        raise ValueError(f"not symmetric float8 args: {args}")
    wide = x.to(torch.float32)
    if not args.dynamic:
        scale, _ = _static(wide, args, scale, None)
    elif args.strategy == "group" and args.group_size:
        return _quantize_fp8_groups(wide, args.group_size)
    else:
        scale = (_reduce(wide.abs(), args).div_(FP8_MAX)).clamp_(min=_TINY)
    return (wide / scale).clamp_(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), scale


def quantize_outputs(y: Tensor, args: QuantArgs, scale: Tensor | None, zero_point: Tensor | None) -> Tensor:
    """y [..., N] in fp32 or fp64 to the values that its codes stand for, in the same dtype.

    Static int args, one ``scale`` (and ``zero_point``) for all. Raises ``ValueError`` for args that are not of this
    kind.
    """
    if args.dynamic:
        raise ValueError(f"outputs have a stored scale: {args}")
    q, factor, offset = quantize_int(y, args, scale, zero_point)
    codes = q.to(y.dtype)
    return (codes if offset is None else codes.sub_(offset)).mul_(factor)


def seen_inputs(
    x: Tensor, args: QuantArgs | None, scale: Tensor | None, zero_point: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """What a layer multiplies its weight with, in ``dtype``, and the factor [..., 1] or [1, ..., 1] of the product.

    Inputs left alone, and those with a scale a group of columns, which cannot leave the sum, have no factor. ``scale``
    and ``zero_point``: the stored ones of static args.
    """
    if args is None:
        return x.to(dtype), None
    offset = None
    if args.type == "int":
        q, factor, offset = quantize_int(x, args, scale, zero_point)
    else:
        q, factor = quantize_fp8(x, args, scale)
    values = q.to(dtype)
    if args.strategy != "group" or not args.group_size:
        return (values if offset is None else values.sub_(offset)), factor
    k = x.shape[-1]
    if offset is not None:
        values.sub_(expand_groups(offset, args.group_size, k))
    return values.mul_(expand_groups(factor, args.group_size, k)), None


def expand_groups(scale: Tensor, group_size: int, k: int) -> Tensor:
    """Group scales [..., G] to one a column, [..., K]."""
    return scale.repeat_interleave(group_size, dim=-1)[..., :k]


def _quantize_fp8_groups(wide: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    k = wide.shape[-1]
    grouped = _grouped(wide, group_size)
    scale = grouped.abs().amax(dim=-1).div_(FP8_MAX).clamp_(min=_TINY)
    q = (grouped / scale.unsqueeze(-1)).clamp_(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return q.flatten(-2)[..., :k], scale


def _grouped(wide: Tensor, group_size: int) -> Tensor:
    """[..., K] to [..., G, group_size]. A short last group is filled up with zeros, which change no scale: every range
    contains 0."""
    short = -wide.shape[-1] % group_size
    padded = F.pad(wide, (0, short)) if short else wide
    return padded.reshape(*wide.shape[:-1], padded.shape[-1] // group_size, group_size)


def _dynamic_int(wide: Tensor, args: QuantArgs, low: int, high: int) -> tuple[Tensor, Tensor | None]:
    if args.symmetric:
        return _reduce(wide.abs(), args).div_(high).clamp_(min=_TINY), None
    top = _reduce(wide, args).clamp_(min=0.0)
    bottom = -_reduce(-wide, args).clamp_(min=0.0)
    scale = ((top - bottom) / (high - low)).clamp_(min=_TINY)
    zero_point = (low - bottom / scale).round_().clamp_(low, high)
    # A NaN has no integer; the scale is NaN then and carries it on.
    return scale, zero_point.nan_to_num_(nan=0.0).to(torch.int32)


def _reduce(values: Tensor, args: QuantArgs) -> Tensor:
    """Largest value of each row (token; group, whose rows are groups; [..., 1]) or of all ([1, ..., 1]). NaN wins over
    every number."""
    by_row = args.strategy in ("token", "group")
    if values.numel() == 0:
        # no rows: nothing to reduce, and a maximum of nothing is an error
        return values.new_zeros([*values.shape[:-1], 1] if by_row else [1] * values.ndim)
    if by_row:
        return values.amax(dim=-1, keepdim=True)
    if args.strategy == "tensor":
        return values.amax().reshape([1] * values.ndim)
    raise ValueError(f"dynamic inputs have strategy token, group or tensor, not {args.strategy}")


def _static(
    wide: Tensor, args: QuantArgs, scale: Tensor | None, zero_point: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    if args.strategy != "tensor":
        raise ValueError(f"static inputs have strategy tensor, not {args.strategy}")
    if scale is None:
        raise ValueError("static inputs need their stored scale")
    if not args.symmetric and zero_point is None:
        raise ValueError("static asymmetric inputs need their stored zero point")
    shape = [1] * wide.ndim
    stored = None if args.symmetric or zero_point is None else zero_point.to(torch.int32).reshape(shape)
    return scale.to(torch.float32).reshape(shape), stored
