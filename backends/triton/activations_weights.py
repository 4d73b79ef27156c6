"""Weights in the layout that the kernels for quantized inputs read, made and undone in torch on any device."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ...numerics.microfloats import pack_floats, unpack_floats
from ...numerics.microscaling import is_mx, is_nvfp4
from ...registry.args import QuantArgs
from ...registry.facts import KernelSpec
from .activations_codes import E4M3, E8M0, FLOAT
from .activations_linear import Product

_MXFP8 = ("w8a8_mxfp8", "w8a16_mxfp8")
#: columns that 4-bit codes are packed by at most, and at least
_LONGEST, _SHORTEST = 128, 32


def small_floats(spec: KernelSpec) -> bool:
    """Are the weights floats in small groups, whose scales may be exponents?"""
    args = spec.weights
    if args is None or args.type != "float":
        return False
    return args.num_bits < 8 or is_mx(args) or spec.scheme in _MXFP8


def small_inputs(spec: KernelSpec) -> QuantArgs | None:
    """The inputs' args where they are mx or nvfp4, which are quantized in x's own dtype."""
    args = spec.inputs
    if args is None or not small_floats(spec):
        return None
    # fp8 in groups of 32 that does not say what its scales are: float ones come beside fp4 weights only
    mx = is_nvfp4(args) or is_mx(args) or (spec.weights is not None and spec.weights.num_bits != 4)
    return args if mx else None


def product_of(spec: KernelSpec) -> Product:
    """What is multiplied for a layer of known shape; its scales are taken for plain floats (see :func:`with_scale`)."""
    weights, inputs, n, k = spec.weights, spec.inputs, spec.n, spec.k
    if weights is None or n is None or k is None:
        raise ValueError(f"a kernel is bound to a layer of known shape, not {spec}")
    integer = weights.type == "int"
    narrow = weights.num_bits <= 4
    kind = ("int4" if narrow else "int8") if integer else ("fp4" if narrow else "fp8")
    group, rows = 0, 1
    if weights.strategy in ("group", "tensor_group"):
        group = weights.group_size or 0
    elif weights.strategy == "block" and weights.block_structure is not None:
        rows, group = weights.block_structure
    elif weights.strategy == "tensor":
        rows = n
    # one group a row is no group
    group = 0 if group >= k else group
    seen = "half" if inputs is None or small_inputs(spec) is not None else ("int8" if inputs.type == "int" else "fp8")
    x_group = inputs.group_size or 0 if seen != "half" and inputs is not None and inputs.strategy == "group" else 0
    x_group = 0 if x_group >= k else x_group
    return Product(
        kind, seen, group, rows, x_group, integer and not weights.symmetric, FLOAT.value,
        integer and weights.num_bits == 8, _run(k, 0 if is_nvfp4(weights) else group, x_group),
    )  # fmt: skip


def with_scale(of: Product, spec: KernelSpec, scale: Tensor) -> Product:
    """The product with scales as they are stored: a format that knows no exponents keeps mx scales as floats."""
    if scale.dtype != torch.uint8:
        return of
    nv = spec.weights is not None and is_nvfp4(spec.weights)
    return replace(of, scale=E4M3.value if nv else E8M0.value)


def _run(k: int, *groups: int) -> int:
    """A power of two that divides the groups, and is not much longer than K."""
    run = _LONGEST
    while run > _SHORTEST and 2 * run > max(k, 2 * _SHORTEST):
        run //= 2
    for group in groups:
        while group and group % run:
            run //= 2
    return run


# -- codes


def pack_codes(codes: Tensor, of: Product) -> Tensor:
    """int8 or float8_e4m3fn [N, K] to int8 or uint8 [N, K], or uint8 [N, K' / 2] for 4 bits (see
    :mod:`.activations_product`)."""
    codes = codes.contiguous()
    if not of.packed:
        # another view of the same memory would be written when the state is
        return codes.clone() if of.weight == "int8" else codes.view(torch.uint8).clone()
    if of.weight == "fp4":
        pairs = pack_floats(codes, 4)
        nibbles = torch.stack([pairs & 15, pairs >> 4], dim=-1).flatten(-2)
    else:
        nibbles = codes.view(torch.uint8) & 15
    n, k = nibbles.shape
    halves = F.pad(nibbles, (0, -k % (2 * of.run))).view(n, -1, 2, of.run)
    return (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(n, -1)


def unpack_codes(packed: Tensor, of: Product, k: int) -> Tensor:
    """The inverse: int8 or float8_e4m3fn [N, K]."""
    if not of.packed:
        return packed if of.weight == "int8" else packed.view(torch.float8_e4m3fn)
    n = packed.shape[0]
    bytes_ = packed.view(n, -1, 1, of.run)
    nibbles = torch.cat([bytes_ & 15, bytes_ >> 4], dim=2).reshape(n, -1)[:, :k]
    if of.weight == "fp4":
        pairs = nibbles.reshape(n, k // 2, 2)
        return unpack_floats((pairs[..., 0] | pairs[..., 1] << 4).contiguous(), 4)
    return ((nibbles << 4).view(torch.int8) >> 4).contiguous()


# -- scales and zero points


def pack_grid(values: Tensor) -> Tensor:
    """Scales or zero points [SR, G] to [G, SR], so that outputs lie side by side."""
    return values.t().contiguous().clone()


def unpack_grid(values: Tensor) -> Tensor:
    return values.t().contiguous()


def code_sums(codes: Tensor, scale: Tensor, zero: Tensor | None, of: Product, chunk: int = 1024) -> Tensor:
    """[N]: what an input zero point of one takes away from the product: the sums of code less zero point, int32, or,
    where groups have scales of their own, of the weights, fp32."""
    n, k = codes.shape
    parts = []
    for start in range(0, n, chunk):
        outputs = torch.arange(start, min(n, start + chunk), device=codes.device)
        rows = outputs // of.rows
        values = codes[outputs].to(torch.float64)
        group = torch.arange(k, device=codes.device) // of.group if of.group else None
        if zero is not None:
            offset = zero[rows].to(torch.float64)
            values -= offset if group is None else offset[:, group]
        if group is not None:
            values *= scale[rows].to(torch.float64)[:, group]
        parts.append(values.sum(-1))
    return torch.cat(parts).to(torch.int32 if of.integer else torch.float32)
