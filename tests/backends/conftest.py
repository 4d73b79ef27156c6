"""Random layers of any legal shape, and what they compute, in float64 and written apart from the library's numerics."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

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
        n, k = o.codes.shape
        rows = torch.arange(n) // (args.block_structure[0] if args.block_structure else 1)
        columns = torch.zeros(k, dtype=torch.long)
        if o.g_idx is not None:
            columns = o.g_idx.long()
        elif args.strategy in ("group", "tensor_group", "block"):
            columns = torch.arange(k) // (args.group_size or args.block_structure[1])
        if args.strategy == "tensor":
            rows = torch.zeros(n, dtype=torch.long)
        pick = lambda t: t.double()[rows][:, columns]  # noqa: E731
        scale = 2.0 ** (pick(o.scale) - 127) if o.scale.dtype == torch.uint8 else pick(o.scale)
        weight = (o.codes.double() - (0 if o.zero_point is None else pick(o.zero_point))) * scale
        return weight if o.global_scale is None else weight / o.global_scale.double()

    def inputs(self, x: Tensor) -> Tensor:
        """What the layer multiplies with, float64: x, or x quantized by the formulas of the design in fp32."""
        args, o = self.spec.inputs, self.operands
        if args is None:
            return x.double()
        if is_nvfp4(args) or is_mx(args):
            return fake_quantize(x, args, o.input_global_scale).double()
        x = x.float()
        axis = None if args.strategy == "tensor" else -1
        if args.type == "float":
            if args.strategy == "group":
                parts = [
                    self._fp8(part, part.abs().amax(-1, keepdim=True) / 448) for part in x.split(args.group_size, -1)
                ]
                return torch.cat(parts, -1)
            return self._fp8(
                x, x.abs().amax(axis, keepdim=axis is not None) / 448 if args.dynamic else o.input_scale.float()
            )
        if args.strategy == "group":
            return torch.cat([self._int(part, args, -1) for part in x.split(args.group_size, -1)], -1)
        return self._int(x, args, axis)

    def _int(self, x: Tensor, args: QuantArgs, axis: int | None) -> Tensor:
        o, tiny = self.operands, torch.finfo(torch.float32).tiny
        most = 2 ** (args.num_bits - 1)
        zero = torch.tensor(0.0)
        if not args.dynamic:
            scale = o.input_scale.float()
            zero = zero if args.symmetric else o.input_zero_point.float()
        elif args.symmetric:
            scale = (x.abs().amax(axis, keepdim=axis is not None) / (most - 1)).clamp(min=tiny)
        else:
            high = x.amax(axis, keepdim=axis is not None).clamp(min=0)
            low = x.amin(axis, keepdim=axis is not None).clamp(max=0)
            scale = ((high - low) / (2 * most - 1)).clamp(min=tiny)
            zero = (-most - low / scale).round().clamp(-most, most - 1)
        return ((x / scale + zero).round().clamp(-most, most - 1).double() - zero.double()) * scale.double()

    @staticmethod
    def _fp8(x: Tensor, scale: Tensor) -> Tensor:
        scale = scale.clamp(min=torch.finfo(torch.float32).tiny)
        return (x / scale).clamp(-448, 448).to(FP8).double() * scale.double()

    def output(self, x: Tensor) -> Tensor:
        y = self.inputs(x) @ self.weight().T
        return y if self.operands.bias is None else y + self.operands.bias.double()


def spec_of(
    weights: QuantArgs,
    inputs: QuantArgs | None = None,
    *,
    n: int = 32,
    k: int = 64,
    dtype: str = "bfloat16",
    bias: bool = False,
    kind: str = "linear",
    reference: str = "",
) -> KernelSpec:
    block = weights.block_structure
    group = weights.group_size or (block[1] if block else k)
    ordered = weights.actorder == "group"
    return KernelSpec("linear", kind, "test", weights, inputs, None, n, k, dtype, group, ordered, bias, reference)


def make(
    weights: QuantArgs,
    inputs: QuantArgs | None = None,
    *,
    n: int = 32,
    k: int = 64,
    dtype: str = "bfloat16",
    bias: bool = False,
    scale_dtype: torch.dtype = torch.bfloat16,
    kind: str = "linear",
    reference: str = "",
    outputs: QuantArgs | None = None,
    scheme: str = "test",
    seed: int = 0,
) -> Layer:
    generator = torch.Generator().manual_seed(seed)
    spec = spec_of(weights, inputs, n=n, k=k, dtype=dtype, bias=bias, kind=kind, reference=reference)
    spec = replace(spec, outputs=outputs, scheme=scheme)
    group = spec.group_size
    grid = {"tensor": (1, 1), "channel": (n, 1)}.get(weights.strategy)
    if grid is None:
        grid = (-(-n // (weights.block_structure or (1, 0))[0]), -(-k // group))
    operands = Operands(None, None)
    half = 1 << (weights.num_bits - 1)
    if weights.type == "float":
        operands.codes = (torch.randn(n, k, generator=generator) * 60).clamp(-448, 448).to(FP8)
        if weights.num_bits < 8:
            table = torch.tensor(values(weights.num_bits))
            operands.codes = table[torch.randint(len(table), (n, k), generator=generator)].to(FP8)
    else:
        operands.codes = torch.randint(-half, half, (n, k), generator=generator, dtype=torch.int8)
    operands.scale = (torch.rand(grid, generator=generator) * 0.9 + 0.1).mul_(0.01).to(scale_dtype)
    if is_nvfp4(weights):
        operands.scale = (torch.rand(grid, generator=generator) * 448).to(FP8)
        operands.global_scale = torch.tensor([5000.0])
    elif is_mx(weights):
        operands.scale = torch.randint(110, 124, grid, generator=generator, dtype=torch.uint8)
    if inputs is not None and is_nvfp4(inputs):
        operands.input_global_scale = torch.tensor([300.0])
    if not weights.symmetric:
        operands.zero_point = torch.randint(-half, half, grid, generator=generator, dtype=torch.int8)
    if weights.actorder == "group":
        operands.g_idx = (torch.arange(k) // group)[torch.randperm(k, generator=generator)].to(torch.int32)
    if outputs is not None:
        operands.output_scale = torch.tensor([0.03], dtype=scale_dtype)
        operands.output_zero_point = None if outputs.symmetric else torch.tensor([11], dtype=torch.int8)
    if inputs is not None and not inputs.dynamic:
        operands.input_scale = torch.tensor([0.02 if inputs.type == "int" else 0.005], dtype=scale_dtype)
        if not inputs.symmetric:
            operands.input_zero_point = torch.tensor([-17], dtype=torch.int8)
    if bias:
        operands.bias = torch.randn(n, generator=generator).to(getattr(torch, dtype))
    return Layer(spec, operands)


def same(a: Operands, b: Operands) -> bool:
    """Equal bit for bit, dtypes and shapes included."""

    def equal(x: Tensor | None, y: Tensor | None) -> bool:
        if x is None or y is None:
            return x is y
        bits = [t.reshape(-1).view(torch.uint8) if t.numel() else t for t in (x, y)]
        return x.dtype == y.dtype and x.shape == y.shape and torch.equal(*bits)

    names = [field.name for field in fields(Operands) if field.name != "extra"]
    return (
        all(equal(getattr(a, name), getattr(b, name)) for name in names)
        and a.extra.keys() == b.extra.keys()
        and all(equal(a.extra[name], b.extra[name]) for name in a.extra)
    )


def error(y: Tensor, exact: Tensor) -> float:
    """Relative RMS error."""
    return ((y.double() - exact).norm() / exact.norm().clamp(min=1e-30)).item()


@pytest.fixture(scope="session")
def layers() -> SimpleNamespace:
    return SimpleNamespace(make=make, spec=spec_of, same=same, error=error, Layer=Layer)
