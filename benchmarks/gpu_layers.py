"""Random layers on a device and what they compute in float64, by the formulas of docs/schemes.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quantdispatch.numerics.activations import expand_groups, quantize_fp8, quantize_int
from quantdispatch.numerics.microfloats import values
from quantdispatch.numerics.microscaling import fake_quantize, is_mx, is_nvfp4
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.facts import KernelSpec
from quantdispatch.registry.operands import Operands

FP8 = torch.float8_e4m3fn


@dataclass
class Layer:
    spec: KernelSpec
    operands: Operands

    def weight(self) -> Tensor:
        """float64 [N, K]."""
        o, args = self.operands, self.spec.weights
        assert args is not None
        n, k = o.codes.shape
        device = o.codes.device
        rows = torch.arange(n, device=device) // (args.block_structure[0] if args.block_structure else 1)
        columns = torch.zeros(k, dtype=torch.long, device=device)
        if o.g_idx is not None:
            columns = o.g_idx.long()
        elif args.strategy in ("group", "tensor_group", "block"):
            assert self.spec.group_size
            columns = torch.arange(k, device=device) // self.spec.group_size
        if args.strategy == "tensor":
            rows = torch.zeros_like(rows)
        scale = o.scale.double()[rows][:, columns]
        scale = 2.0 ** (scale - 127) if o.scale.dtype == torch.uint8 else scale
        zero = 0 if o.zero_point is None else o.zero_point.double()[rows][:, columns]
        weight = (o.codes.double() - zero) * scale
        return weight if o.global_scale is None else weight / o.global_scale.double()

    def inputs(self, x: Tensor) -> Tensor:
        """float64 of what the weight is multiplied by."""
        args, o = self.spec.inputs, self.operands
        if args is None:
            return x.double()
        if is_nvfp4(args) or is_mx(args):
            return fake_quantize(x, args, o.input_global_scale).double()
        zero: Any = None
        if args.type == "float":
            codes, scale = quantize_fp8(x, args, o.input_scale)
        else:
            codes, scale, zero = quantize_int(x, args, o.input_scale, o.input_zero_point)
        if args.strategy == "group" and args.group_size:
            scale = expand_groups(scale, args.group_size, x.shape[-1])
        return (codes.double() - (0 if zero is None else zero.double())) * scale.double()

    def output(self, x: Tensor) -> Tensor:
        y = self.inputs(x) @ self.weight().T
        return y if self.operands.bias is None else y + self.operands.bias.double()


def make(
    scheme: str, weights: QuantArgs, inputs: QuantArgs | None, n: int, k: int, dtype: str, device: str, seed: int,
    kind: str = "linear",
) -> Layer:  # fmt: skip
    generator = torch.Generator(device).manual_seed(seed)
    block = weights.block_structure
    group = weights.group_size or (block[1] if block else k)
    ordered = weights.actorder == "group"
    spec = KernelSpec("linear", kind, scheme, weights, inputs, None, n, k, dtype, group, ordered, seed % 2 == 0)
    grid = {"tensor": (1, 1), "channel": (n, 1)}.get(str(weights.strategy))
    if grid is None:
        grid = (-(-n // (block or (1, 0))[0]), -(-k // group))

    def integers(low: int, high: int, shape: tuple[int, ...], kind: torch.dtype) -> Tensor:
        return torch.randint(low, high, shape, generator=generator, device=device).to(kind)

    half = 1 << (weights.num_bits - 1)
    scale = torch.rand(grid, generator=generator, device=device) * 0.009 + 0.001
    operands = Operands(None, scale.to(torch.bfloat16))
    if weights.type == "int":
        operands.codes = integers(-half, half, (n, k), torch.int8)
    elif weights.num_bits == 8:
        operands.codes = (torch.randn(n, k, generator=generator, device=device) * 60).clamp(-448, 448).to(FP8)
    else:
        table = torch.tensor(values(weights.num_bits), device=device)
        operands.codes = table[integers(0, len(table), (n, k), torch.long)].to(FP8)
    if is_nvfp4(weights):
        operands.scale = (torch.rand(grid, generator=generator, device=device) * 448).to(FP8)
        operands.global_scale = torch.tensor([5000.0], device=device)
    elif is_mx(weights):
        operands.scale = integers(110, 124, grid, torch.uint8)
    if not weights.symmetric:
        operands.zero_point = integers(-half, half, grid, torch.int8)
    if ordered:
        order = torch.randperm(k, generator=generator, device=device)
        operands.g_idx = (torch.arange(k, device=device) // group)[order].to(torch.int32)
    if inputs is not None and is_nvfp4(inputs):
        operands.input_global_scale = torch.tensor([300.0], device=device)
    elif inputs is not None and not inputs.dynamic:
        operands.input_scale = torch.tensor([0.02 if inputs.type == "int" else 0.01], device=device)
        if not inputs.symmetric:
            operands.input_zero_point = torch.tensor([-17], dtype=torch.int8, device=device)
    if spec.bias:
        operands.bias = torch.randn(n, generator=generator, device=device).to(getattr(torch, dtype))
    return Layer(spec, operands)
