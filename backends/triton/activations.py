"""Quantized activations on the device: launches of the kernels that make them. Nothing here waits for the device."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ...numerics.microscaling import is_nvfp4
from ...registry.args import QuantArgs
from . import activations_kernels as kernels
from . import activations_small as small

#: columns of a row that a program has in registers
_BLOCK = 4096
#: values of small groups that a program has in registers
_TILE = 2048


class Quantized(NamedTuple):
    """x [M, K] ~ (codes - zero) * scale. ``codes`` int8 or, for float8, uint8 bits; ``scale`` fp32 and ``zero`` int32
    (or ``None``): [M, 1] (token), [1, 1] (tensor) or [M, G] (group)."""

    codes: Tensor
    scale: Tensor
    zero: Tensor | None


def quantize(
    rows: Tensor, args: QuantArgs, stored: Tensor | None = None, stored_zero: Tensor | None = None
) -> Quantized:
    """``rows`` [M, K], their last axis contiguous, as :func:`quantdispatch.numerics.activations.quantize_int` and
    ``quantize_fp8`` quantize them, bit for bit. ``stored`` and ``stored_zero``: of static args.

    Raises ``ValueError`` where static args lack their stored scale or zero point.
    """
    count, k = rows.shape
    fp8 = args.type == "float"
    symmetric = fp8 or args.symmetric
    how = {"FP8": fp8, "BITS": args.num_bits, "SYMMETRIC": symmetric}
    codes = torch.empty((count, k), dtype=torch.uint8 if fp8 else torch.int8, device=rows.device)
    groups = -(-k // args.group_size) if args.strategy == "group" and args.group_size else 1
    width = (1, 1) if args.strategy == "tensor" else (count, groups)
    scale = torch.empty(width, dtype=torch.float32, device=rows.device)
    zero = None if symmetric else torch.empty(width, dtype=torch.int32, device=rows.device)
    block = min(_BLOCK, triton.next_power_of_2(k))
    if args.strategy == "group" and args.group_size:
        tile = triton.next_power_of_2(args.group_size)
        several = max(1, _TILE // tile)
        kernels.quantize_groups[(count, -(-groups // several))](
            rows, codes, scale, zero, rows.stride(0), k, groups, 1, **how,
            SIZE=args.group_size, WIDTH=tile, GROUPS=several,
        )  # fmt: skip
    elif args.strategy == "token":
        kernels.quantize_tokens[(count,)](
            rows, codes, scale, zero, rows.stride(0), k, 1, **how, BLOCK=block, num_warps=_warps(block)
        )
    else:
        extent = None
        if args.dynamic:
            extent = torch.zeros(2, dtype=torch.int32, device=rows.device)
            kernels.tensor_extent[(count,)](rows, extent, rows.stride(0), k, SYMMETRIC=symmetric, BLOCK=block)
        elif stored is None or not (symmetric or stored_zero is not None):
            raise ValueError("static inputs need their stored scale, and asymmetric ones their zero point")
        kernels.quantize_tensor[(count, -(-k // block))](
            rows, codes, scale, zero, extent, stored, stored_zero, rows.stride(0), k,
            DYNAMIC=bool(args.dynamic), **how, BLOCK=block, num_warps=_warps(block),
        )  # fmt: skip
    return Quantized(codes, scale, zero)


def fake_quantized(rows: Tensor, args: QuantArgs, global_scale: Tensor | None = None) -> Tensor:
    """``rows`` [M, K], 16 or 32 bits, K a multiple of the group, quantized to mx or nvfp4 and dequantized in their own
    dtype: :func:`quantdispatch.numerics.microscaling.fake_quantize`, bit for bit."""
    count, k = rows.shape
    out = torch.empty((count, k), dtype=rows.dtype, device=rows.device)
    size, several, groups = _small(args, k)
    small.fake_quantize[(count, -(-groups // several))](
        rows, out, global_scale, rows.stride(0), k, groups, 1,
        NV=is_nvfp4(args), BITS=args.num_bits, SIZE=size, GROUPS=several,
    )  # fmt: skip
    return out


def quantize_small(rows: Tensor, args: QuantArgs, global_scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """``rows`` [M, K] to codes uint8 [M, K / 2] (e2m1, the first of a byte in its low half) or [M, K] (e4m3), and
    scales uint8 [M, G]: exponents, or the bits of nvfp4's e4m3."""
    count, k = rows.shape
    size, several, groups = _small(args, k)
    codes = torch.empty((count, k * args.num_bits // 8), dtype=torch.uint8, device=rows.device)
    scale = torch.empty((count, groups), dtype=torch.uint8, device=rows.device)
    small.quantize_small[(count, -(-groups // several))](
        rows, codes, scale, global_scale, rows.stride(0), k, groups,
        NV=is_nvfp4(args), BITS=args.num_bits, SIZE=size, GROUPS=several,
    )  # fmt: skip
    return codes, scale


def _small(args: QuantArgs, k: int) -> tuple[int, int, int]:
    """Columns of a group, groups of a program, groups of a row."""
    size = 16 if is_nvfp4(args) else 32
    groups = k // size
    return size, min(_TILE // size, triton.next_power_of_2(groups)), groups


def _warps(block: int) -> int:
    return max(1, min(8, block // 512))
