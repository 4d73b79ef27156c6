"""What Marlin makes of each kind of weight: its codes as unsigned integers, and its scales as the kernels read them.

fp8 and fp4 codes are turned into halves by moving bits, which leaves the exponent's bias behind: it is multiplied into
the scales (fp8), or into the factor of all (nvfp4). The formulas are those of the kernels' ``dequant.h``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...numerics.microfloats import pack_floats, unpack_floats
from ...numerics.microscaling import is_mx, is_nvfp4
from ...registry.args import QuantArgs
from ...registry.errors import QuantDispatchError
from .providers import weight_types as types

#: of a half in each dtype, the exponent's bias less that of e4m3 and of e2m1
_FP8_BIAS = {torch.float16: 15 - 7, torch.bfloat16: 127 - 7}
_FP4_BIAS = {torch.float16: 15 - 1, torch.bfloat16: 127 - 1}
#: nvfp4's scales are held times 2^7, so that the top bit of every one is set that is not too small
_NV_SHIFT = 7
#: fp8 in groups of 32 whose args do not say that the scales are exponents
MXFP8 = ("w8a8_mxfp8", "w8a16_mxfp8")
#: of four scales, the order in which one word gives two pairs
_QUAD = (0, 2, 1, 3)


@dataclass(frozen=True)
class Form:
    """``kind``: the ops' type. ``group``: rows of W.T with one scale, ``None`` where all have one. ``scale``: how
    scales are held: ``"plain"``, ``"fp8"`` (with the exponent's bias), ``"nv"`` or ``"mx"`` (one byte each)."""

    kind: types.WeightType
    group: int | None
    scale: str


def form_of(args: QuantArgs, scheme: str) -> Form:
    """The form of a layer's weights. Raises ``QuantDispatchError`` for what Marlin has no form for."""
    group = None
    if args.strategy in ("group", "tensor_group"):
        group = args.group_size
    elif args.strategy == "block" and args.block_structure:
        group = args.block_structure[1]
    if is_nvfp4(args):
        return Form(types.FLOAT4, group, "nv")
    if args.type == "float" and args.num_bits == 4 and is_mx(args):
        return Form(types.FLOAT4, group, "mx")
    if args.type == "float" and args.num_bits == 8:
        return Form(types.FLOAT8, group, "mx" if is_mx(args) or scheme in MXFP8 else "fp8")
    kinds = {(4, True): types.UINT4B8, (8, True): types.UINT8B128, (4, False): types.UINT4}
    kind = kinds.get((args.num_bits, args.symmetric)) if args.type == "int" else None
    if kind is None:
        raise QuantDispatchError(
            "Marlin has no kernel for these weights", field="weights", observed=args.describe(),
            required="4 or 8 bits symmetric, 4 bits asymmetric, fp8, nvfp4 or mxfp4", remedy="choose another backend",
            code="QD803",
        )  # fmt: skip
    return Form(kind, group, "plain")


# --- codes


def unsigned(codes: Tensor, kind: types.WeightType) -> Tensor:
    """Operands' codes [N, K] to uint8 [N, K] as Marlin numbers them. Raises ``QuantDispatchError`` for NaN."""
    if kind == types.FLOAT4:
        packed = pack_floats(codes, 4)
        return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)
    octets = codes.contiguous().view(torch.uint8)
    if kind == types.FLOAT8:
        if bool((octets & 0x7F == 0x7F).any()):
            raise QuantDispatchError(
                "Marlin reads a NaN weight as a number", field="weight", observed="NaN", required="finite codes",
                code="QD803",
            )  # fmt: skip
        return octets
    return (octets + (1 << (kind.bits - 1))) & ((1 << kind.bits) - 1)


def signed(octets: Tensor, kind: types.WeightType) -> Tensor:
    """The inverse of :func:`unsigned`."""
    if kind == types.FLOAT4:
        return unpack_floats((octets[:, ::2] | octets[:, 1::2] << 4).contiguous(), 4)
    if kind == types.FLOAT8:
        return octets.contiguous().view(torch.float8_e4m3fn)
    return (octets - (1 << (kind.bits - 1))).view(torch.int8)


# --- scales


def fp8_scales(scales: Tensor) -> Tensor:
    """Scales in the dtype of x to what multiplies fp8 codes whose exponent lacks its bias. Raises
    ``QuantDispatchError`` for scales that this takes out of the dtype."""
    wide = scales.double() * 2.0 ** _FP8_BIAS[scales.dtype]
    held = wide.to(scales.dtype)
    if not bool(held.isfinite().all()):
        limit = torch.finfo(scales.dtype).max / 2.0 ** _FP8_BIAS[scales.dtype]
        raise QuantDispatchError(
            f"Marlin holds fp8 scales times 2^{_FP8_BIAS[scales.dtype]}, which is infinite for these",
            field="weight_scale", observed=scales.max().item(), required=f"at most {limit:g}",
            remedy="choose another backend", code="QD803",
        )  # fmt: skip
    return held


def plain_fp8_scales(held: Tensor) -> Tensor:
    """The inverse of :func:`fp8_scales`."""
    return (held.double() * 2.0 ** -_FP8_BIAS[held.dtype]).to(held.dtype)


def quads(scales: Tensor) -> Tensor:
    """One-byte scales [G, N], already permuted, in the order of the words that the kernels take apart."""
    index = torch.tensor(_QUAD, device=scales.device)
    return scales.reshape(-1, 4).index_select(1, index).view(scales.shape)


def nv_scales(scales: Tensor, dtype: torch.dtype) -> tuple[Tensor, float]:
    """e4m3 scales to (bytes of five bits of exponent and three of mantissa, the power of two they were multiplied by).

    bf16 kernels read the byte as if its top bit were set, which leaves out what is below 2^-6. So all are made as large
    as they may be; what is too small even then is zero. Half-precision kernels read every byte rightly.
    """
    wide = scales.float()
    shift = 0.0
    largest = float(wide.max()) if wide.numel() else 0.0
    if dtype == torch.bfloat16 and largest > 0:
        shift = float(torch.tensor(448.0 / largest).log2().floor())
    held = (wide * 2.0 ** (shift + _NV_SHIFT)).half()
    if dtype == torch.bfloat16:
        held = torch.where(held < 2, torch.zeros_like(held), held)
    return (held.view(torch.int16) >> 7).to(torch.uint8), 2.0**shift


def plain_nv_scales(held: Tensor, factor: float) -> Tensor:
    """The inverse of :func:`nv_scales`: e4m3, with zeros where a scale was too small."""
    half = (held.to(torch.int16) << 7).view(torch.float16)
    return (half.float() / (factor * 2.0**_NV_SHIFT)).to(torch.float8_e4m3fn)


def nv_whole(global_scale: Tensor, factor: float, dtype: torch.dtype) -> Tensor:
    """The factor of all, fp64 [1]: one by the checkpoint's divisor, with the bias that the codes lack and less what the
    scales were multiplied by."""
    return 2.0 ** (_FP4_BIAS[dtype] - _NV_SHIFT) / (global_scale.double() * factor)
