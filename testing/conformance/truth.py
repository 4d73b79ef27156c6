"""What a layer computes, in float64 and from the definitions alone: no scheme and no kernel takes part.

Integers: ``(code - zero_point) * scale``; floats: ``code * scale / global_scale``. Inputs are quantized by the formulas
of ``numerics.activations``, written again here; those of mx and nvfp4 inputs, which follow compressed-tensors step by
step, are the library's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...numerics.microscaling import fake_quantize, is_mx, is_nvfp4
from ...registry.args import QuantArgs
from ...registry.operands import Operands
from .layers import Layer
from .operands import FP8

_TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Truth:
    """A layer with its operands. ``mx_inputs``: fp8 inputs in groups of 32 that do not name their scales' dtype have
    exponents."""

    layer: Layer
    operands: Operands
    mx_inputs: bool = False

    def with_(self, **operands: Any) -> Truth:
        """The same layer with other operands."""
        return replace(self, operands=replace(self.operands, **operands))

    def unquantized(self, *sides: str) -> Truth:
        """The same layer with ``sides`` (``"inputs"``, ``"outputs"``) left alone."""
        return replace(self, layer=self.layer.with_(**dict.fromkeys(sides)))

    def weight(self) -> Tensor:
        """float64 [N, K]."""
        o, args = self.operands, self.layer.weights
        if args is None:
            dense: Tensor = o.codes.double()
            return dense
        n, k = o.codes.shape
        rows, columns = torch.arange(n), torch.zeros(k, dtype=torch.long)
        if o.g_idx is not None:
            columns = o.g_idx.long()
        elif args.strategy in ("group", "tensor_group") and args.group_size:
            columns = torch.arange(k) // args.group_size
        elif args.strategy == "block" and args.block_structure is not None:
            rows, columns = rows // args.block_structure[0], torch.arange(k) // args.block_structure[1]
        elif args.strategy == "tensor":
            rows = torch.zeros(n, dtype=torch.long)
        scale = _values(o.scale)[rows][:, columns]
        zero = 0 if o.zero_point is None else o.zero_point.double()[rows][:, columns]
        weight: Tensor = (o.codes.double() - zero) * scale
        return weight if o.global_scale is None else weight / o.global_scale.double()

    def inputs(self, x: Tensor) -> Tensor:
        """What the weight is multiplied with: float64 [..., K]."""
        args, o = self.layer.inputs, self.operands
        if args is None:
            return x.double()
        if is_nvfp4(args) or is_mx(args) or self.mx_inputs:
            return fake_quantize(x, args, o.input_global_scale, mx=None if not self.mx_inputs else True).double()
        if args.strategy == "group" and args.group_size:
            parts = torch.split(x.float(), args.group_size, -1)
            return torch.cat([_quantized(part, args, None, None) for part in parts], -1)
        return _quantized(x.float(), args, o.input_scale, o.input_zero_point)

    def output(self, x: Tensor) -> Tensor:
        """x [..., K] to float64 [..., N]; of an embedding: indices [...] to [..., K]."""
        if self.layer.kind == "embedding":
            return self.weight()[x]
        y = self.inputs(x) @ self.weight().T
        if self.operands.bias is not None:
            y = y + self.operands.bias.double()
        if self.layer.outputs is None:
            return y
        return _quantized(y.float(), self.layer.outputs, self.operands.output_scale, self.operands.output_zero_point)

    @property
    def step(self) -> float | None:
        """The distance between two values of quantized outputs."""
        scale: Tensor | None = self.operands.output_scale
        return None if self.layer.outputs is None or scale is None else float(scale)


def _values(scale: Tensor) -> Tensor:
    return torch.pow(2.0, scale.double() - 127) if scale.dtype == torch.uint8 else scale.double()


def _quantized(x: Tensor, args: QuantArgs, scale: Tensor | None, zero_point: Tensor | None) -> Tensor:
    """fp32 to the float64 values of its codes; scales per row, or one for all."""
    by_row = args.strategy in ("token", "group")

    def over(extreme: Callable[..., Tensor]) -> Tensor:
        return extreme(dim=-1, keepdim=True) if by_row else extreme()

    if args.type == "float":
        scale = over(x.abs().amax) / 448 if args.dynamic else _given(scale)
        scale = scale.clamp(min=_TINY)
        return (x / scale).clamp(-448, 448).to(FP8).double() * scale.double()
    low, high = -(1 << (args.num_bits - 1)), (1 << (args.num_bits - 1)) - 1
    zero = torch.tensor(0.0)
    if not args.dynamic:
        scale = _given(scale)
        zero = zero if args.symmetric else _given(zero_point)
    elif args.symmetric:
        scale = (over(x.abs().amax) / high).clamp(min=_TINY)
    else:
        least, largest = over(x.amin).clamp(max=0), over(x.amax).clamp(min=0)
        scale = ((largest - least) / (high - low)).clamp(min=_TINY)
        zero = (low - least / scale).round().clamp(low, high)
    codes = (x / scale + zero).round().clamp(low, high)
    return (codes.double() - zero.double()) * scale.double()


def _given(value: Tensor | None) -> Tensor:
    if value is None:
        raise ValueError("static args need a stored scale, and asymmetric ones a zero point")
    return value.float()


def cached(states: Tensor, scale: Tensor) -> Tensor:
    """What a quantized cache gives back of states: float64, scale [1] or [heads, 1, 1]."""
    wide = scale.float()
    return (states.float() / wide).clamp(-448, 448).to(FP8).double() * wide.double()
