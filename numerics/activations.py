"""Quantization of activations: the one formula of each kind that every backend must agree with.

All in fp32, whatever the dtype of x. Integers: round half to even, then clamp to the whole range of the type. Float8:
clamp to +-448, then the cast's own round half to even. Symmetric scales are absmax over the largest positive value (127
for int8, 448 for e4m3). compressed-tensors' own fake-quantization divides by 127.5 and takes one scale for a 2-D token
input; engines and hardware do not, and neither does this.

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
    ([..., 1]); tensor, one in all ([1, ..., 1]). Asymmetric: the range always contains 0, so 0 is exact; q =
    clamp(round(x / scale + zero_point)). Raises ``ValueError`` for args that are not of this kind.
    """
    if args.type != "int" or not 2 <= args.num_bits <= 8:
        raise ValueError(f"not int args of 2 to 8 bits: {args}")
    low, high = -(1 << (args.num_bits - 1)), (1 << (args.num_bits - 1)) - 1
    wide = x.to(torch.float32)
    if args.dynamic:
        scale, zero_point = _dynamic_int(wide, args, low, high)
    else:
        scale, zero_point = _static(wide, args, scale, zero_point)
    scaled = wide / scale
    if zero_point is not None:
        scaled += zero_point
    return scaled.round_().clamp_(low, high).to(torch.int8), scale, zero_point


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


def expand_groups(scale: Tensor, group_size: int, k: int) -> Tensor:
    """Group scales [..., G] to one a column, [..., K]."""
    return scale.repeat_interleave(group_size, dim=-1)[..., :k]


def _quantize_fp8_groups(wide: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    k = wide.shape[-1]
    groups = -(-k // group_size)
    if groups * group_size != k:
        wide = F.pad(wide, (0, groups * group_size - k))
    grouped = wide.reshape(*wide.shape[:-1], groups, group_size)
    scale = grouped.abs().amax(dim=-1).div_(FP8_MAX).clamp_(min=_TINY)
    q = (grouped / scale.unsqueeze(-1)).clamp_(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return q.flatten(-2)[..., :k], scale


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
    """Largest value of each row (token, [..., 1]) or of all ([1, ..., 1]). NaN wins over every number."""
    if values.numel() == 0:
        # no rows: nothing to reduce, and a maximum of nothing is an error
        return values.new_zeros([*values.shape[:-1], 1] if args.strategy == "token" else [1] * values.ndim)
    if args.strategy == "token":
        return values.amax(dim=-1, keepdim=True)
    if args.strategy == "tensor":
        return values.amax().reshape([1] * values.ndim)
    raise ValueError(f"dynamic inputs have strategy token or tensor here, not {args.strategy}")


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
