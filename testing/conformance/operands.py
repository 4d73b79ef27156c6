"""Random operands of a layer: every part that its args call for, in the whole range of its values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...registry.args import QuantArgs
from ...registry.operands import Operands
from .layers import Layer

FP8 = torch.float8_e4m3fn
#: what fp4 (e2m1) and fp6 (e2m3) can hold, without sign (OCP microscaling formats v1.0)
MAGNITUDES = {
    4: (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0),
    6: tuple((m + (8 if e else 0)) / 8 * 2.0 ** max(e - 1, 0) for e in range(4) for m in range(8)),
}


def grid(args: QuantArgs, n: int, k: int) -> tuple[int, int]:
    """The shape of a weight's scale, as :class:`Operands` says it."""
    if args.strategy in ("group", "tensor_group") and args.group_size:
        return n, -(-k // args.group_size)
    if args.strategy == "block" and args.block_structure is not None:
        rows, columns = args.block_structure
        return -(-n // rows), -(-k // columns)
    return (1, 1) if args.strategy == "tensor" else (n, 1)


def random_operands(layer: Layer, *, exponents: bool = False) -> Operands:
    """Codes, scales and the rest for ``layer``. ``exponents``: scales are powers of two, one byte each (an mx format
    whose args do not say so)."""
    random = torch.Generator().manual_seed(layer.seed)
    if layer.kind in ("kv_cache", "attention"):
        return _cache(layer, random)
    args = layer.weights
    if args is None:
        weight = torch.randn(layer.n, layer.k, generator=random).to(getattr(torch, layer.scale_dtype))
        operands = Operands(codes=weight, scale=None)
    else:
        operands = _weights(layer, args, random, exponents or args.scale_dtype == "uint8")
    if layer.bias:
        operands.bias = (torch.randn(layer.n, generator=random) + 1).to(getattr(torch, layer.dtype))
    _activations(layer, operands)
    return operands


def _weights(layer: Layer, args: QuantArgs, random: torch.Generator, exponents: bool) -> Operands:
    n, k, half = layer.n, layer.k, 1 << (args.num_bits - 1)
    shape = grid(args, n, k)
    scale: Tensor = torch.rand(shape, generator=random) * 0.9 + 0.1
    global_scale = None
    if args.strategy == "tensor_group":
        scale, global_scale = (scale * 448).to(FP8), torch.tensor([5000.0])
    elif exponents:
        scale = torch.randint(112, 122, shape, generator=random, dtype=torch.uint8)
    else:
        scale = (scale * 0.02).to(getattr(torch, layer.scale_dtype))
    found = Operands(codes=_codes(args, n, k, random), scale=scale, global_scale=global_scale)
    if not args.symmetric:
        found.zero_point = torch.randint(-half, half, shape, generator=random, dtype=torch.int8)
    if args.actorder == "group" and args.group_size:
        order = torch.randperm(k, generator=random)
        found.g_idx = (torch.arange(k) // args.group_size)[order].to(torch.int32)
    return found


def _codes(args: QuantArgs, n: int, k: int, random: torch.Generator) -> Tensor:
    half = 1 << (args.num_bits - 1)
    if args.type == "int":
        return torch.randint(-half, half, (n, k), generator=random, dtype=torch.int8)
    if args.num_bits == 8:
        return (torch.randn(n, k, generator=random) * 60).clamp(-448, 448).to(FP8)
    values = torch.tensor(MAGNITUDES[args.num_bits])
    signs = torch.randint(0, 2, (n, k), generator=random) * 2 - 1
    return (values[torch.randint(len(values), (n, k), generator=random)] * signs).to(FP8)


def _activations(layer: Layer, operands: Operands) -> None:
    dtype = getattr(torch, layer.scale_dtype)
    if layer.inputs is not None and layer.inputs.strategy == "tensor_group":
        operands.input_global_scale = torch.tensor([300.0])
    elif layer.inputs is not None and not layer.inputs.dynamic:
        operands.input_scale = torch.tensor([0.03 if layer.inputs.type == "int" else 0.01], dtype=dtype)
        if not layer.inputs.symmetric:
            operands.input_zero_point = torch.tensor([-(1 << (layer.inputs.num_bits - 4)) - 1], dtype=torch.int8)
    if layer.outputs is not None:
        operands.output_scale = torch.tensor([0.05], dtype=dtype)
        if not layer.outputs.symmetric:
            operands.output_zero_point = torch.tensor([11], dtype=torch.int8)


def _cache(layer: Layer, random: torch.Generator) -> Operands:
    by_head = layer.inputs is not None and layer.inputs.strategy == "attn_head"
    shape = (layer.n, 1, 1) if by_head else (1,)
    scales: dict[str, Any] = {
        f"{part}_scale": (torch.rand(shape, generator=random) * 0.02 + 0.005).to(getattr(torch, layer.scale_dtype))
        for part in ("k", "v", *("q" if layer.kind == "attention" else ""))
    }
    return Operands(codes=None, scale=None, **scales)
