"""Microscaling: small floats in groups along K that share a scale.

MX (OCP v1.0): groups of 32, the scale a power of two. NVFP4: fp4 in groups of 16, the scale e4m3, and all of a tensor's
scales divided by one fp32 ``global_scale``.

Activations come out as compressed-tensors' fake-quantization has them, step by step in the same dtypes
(``quantization/utils/helpers.py``, ``mxfp_utils.py``, ``quantization/lifecycle/forward_helpers.py``).

NaN and infinity in x: under MX the whole group becomes NaN, as it does when its largest value rounds to a power of two
past the range of x's dtype (from 1.75 times the largest power of two on; in float16 from 57,344 on). Under NVFP4 a NaN
does that too, an infinity saturates: the scale becomes the largest there is. The one difference from
compressed-tensors: NaN under MX goes through arithmetic on its bits there, which may overflow and make the rest of the
group zero instead.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..registry.args import QuantArgs
from .microfloats import round_to_fp4

FP8_MAX = 448.0
#: bits of mantissa, bias of the exponent, and the integer that holds a float's bits
_LAYOUT = {
    torch.bfloat16: (7, 127, torch.int16),
    torch.float16: (10, 15, torch.int16),
    torch.float32: (23, 127, torch.int32),
    torch.float64: (52, 1023, torch.int64),
}
#: exponent of the largest value: 6 and 448
_LARGEST = {4: 2, 8: 8}
#: compressed-tensors' stand-in for a scale that rounds to zero
_NV_LEAST = 0.125


def is_nvfp4(args: QuantArgs) -> bool:
    """Are these the args of fp4 below a global scale?"""
    return args.type == "float" and args.num_bits == 4 and args.strategy == "tensor_group"


def is_mx(args: QuantArgs) -> bool:
    """Do these args say in themselves that the scale is a power of two? fp4 in groups of 32 has no other; fp8 has."""
    if args.type != "float" or args.strategy != "group" or args.group_size != 32:
        return False
    return args.scale_dtype == "uint8" or (args.num_bits == 4 and args.scale_dtype is None)


# -- scales


def mx_scale(exponent: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """uint8 exponents with bias 127 to powers of two; 255 is NaN. Exact in bfloat16 and wider."""
    # By the bits of float32, whose exponents they are: compilers do not know torch's own dtype for them.
    bits = exponent.to(torch.int32) << 23
    bits = torch.where(exponent == 0, 1 << 22, torch.where(exponent == 255, 0x7FC00000, bits))
    return bits.to(torch.int32).view(torch.float32).to(dtype)


def scale_values(scale: Tensor, global_scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """What codes are multiplied by: ``scale`` as stored (uint8: exponents; e4m3 or plain floats: themselves), divided
    by ``global_scale`` [1] where there is one. ``dtype``: float32 or wider."""
    wide = mx_scale(scale, dtype) if scale.dtype == torch.uint8 else scale.to(dtype)
    return wide if global_scale is None else wide / global_scale.reshape(1).to(dtype)


# -- weights


def dequantize_groups(
    codes: Tensor, scale: Tensor, global_scale: Tensor | None = None, *, dtype: torch.dtype | None = None
) -> Tensor:
    """The weight [N, K] of float8_e4m3fn ``codes`` [N, K] and ``scale`` [N, G] as stored.

    ``dtype=None``: bit for bit what compressed-tensors decompresses: bfloat16, or the scale's dtype where that is a
    plain float. Else computed in float32 or wider, and then cast.
    """
    if dtype is not None:
        compute = torch.promote_types(torch.float32, dtype)
        return _multiply(codes, scale_values(scale, global_scale, compute)).to(dtype)
    if global_scale is not None:
        # a bfloat16 scale divided by a float32 one: computed in float32, rounded once at the end
        return _multiply(codes, scale_values(scale, global_scale, torch.float32)).to(torch.bfloat16)
    plain = scale.is_floating_point()
    return _multiply(codes, scale if plain else mx_scale(scale, torch.bfloat16))


def _multiply(codes: Tensor, scale: Tensor) -> Tensor:
    product = codes.to(scale.dtype)
    product.view(*scale.shape, codes.shape[-1] // scale.shape[-1]).mul_(scale.unsqueeze(-1))
    return product


# -- activations


def quantize_mx(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """x [..., K], K a multiple of 32, to (codes float8_e4m3fn [..., K], exponents uint8 [..., K / 32]), with
    x ~ codes * 2^(exponents - 127). ``bits``: 4 or 8.

    The exponent is that of the group's largest value, one more where that value would round up to the next power of
    two, less the exponent of the largest code.
    """
    grouped = _grouped(x, 32)
    mantissa, bias, carrier = _LAYOUT[x.dtype]
    wide = torch.int64 if x.dtype == torch.float64 else torch.int32
    largest = grouped.abs().amax(dim=-1).view(carrier).to(wide)
    # Half a step of fp4's one bit of mantissa, whatever the bits: compressed-tensors takes fp4's for fp8 too.
    field = (largest + (1 << (mantissa - 2))) >> mantissa
    exponent = (field - bias + 127 - _LARGEST[bits]).clamp(0, 255)
    exponent = torch.where(field >= 2 * bias + 1, 255, torch.where(field == 0, 0, exponent))
    if x.dtype == torch.float16:
        # a scale that float16 does not have is replaced by one
        exponent = torch.where(exponent < 127 - 24, 127, exponent)
    stored = exponent.to(torch.uint8)
    return _codes(grouped, mx_scale(stored, x.dtype), bits).flatten(-2), stored


def quantize_nvfp4(x: Tensor, global_scale: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., K], K a multiple of 16, to (codes float8_e4m3fn [..., K], scales float8_e4m3fn [..., K / 16]), with
    x ~ codes * scales / global_scale. ``global_scale``: float32 [1].
    """
    grouped = _grouped(x, 16)
    overall = global_scale.reshape(1)
    local = overall * (grouped.abs().amax(dim=-1) / 6.0)
    stored = local.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    wide = stored.to(local.dtype)
    stored = torch.where(wide == 0, _NV_LEAST, wide).to(torch.float8_e4m3fn)
    return _codes(grouped, stored.to(local.dtype) / overall, 4).flatten(-2), stored


def fake_quantize(x: Tensor, args: QuantArgs, global_scale: Tensor | None = None, *, mx: bool | None = None) -> Tensor:
    """x [..., K] quantized and dequantized, in its own dtype: what compressed-tensors multiplies by the weight.

    ``mx``: is the scale a power of two? ``None``: as ``args`` say (:func:`is_mx`). Raises ``ValueError`` for other
    args, for nvfp4 without its ``global_scale``, and for a K that is no multiple of the group.
    """
    if is_nvfp4(args):
        if global_scale is None:
            raise ValueError("nvfp4 inputs need their stored global scale")
        codes, scale = quantize_nvfp4(x, global_scale)
        values = scale_values(scale, global_scale, torch.promote_types(torch.float32, x.dtype))
    elif is_mx(args) if mx is None else mx:
        codes, scale = quantize_mx(x, args.num_bits)
        values = mx_scale(scale, x.dtype)
    else:
        raise ValueError(f"not args of mx or nvfp4 inputs: {args}")
    return _multiply(codes, values).to(x.dtype)


def _grouped(x: Tensor, size: int) -> Tensor:
    if x.shape[-1] % size:
        raise ValueError(f"{x.shape[-1]} columns are no whole number of groups of {size}")
    if x.dtype not in _LAYOUT:
        raise ValueError(f"activations are {', '.join(map(str, _LAYOUT))}, not {x.dtype}")
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def _codes(grouped: Tensor, scale: Tensor, bits: int) -> Tensor:
    # Adding the zero point, which is zero, takes the sign off a zero.
    scaled = grouped / scale.unsqueeze(-1) + 0.0
    rounded = round_to_fp4(scaled) if bits == 4 else scaled.clamp(-FP8_MAX, FP8_MAX)
    return rounded.to(torch.float8_e4m3fn)
