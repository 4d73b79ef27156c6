"""Quantized layers made up at random, as compressed-tensors stores them, and what they compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from quantdispatch.engines.adapters.layers import LayerTable
from quantdispatch.registry.lazy import load_target
from quantdispatch.registry.operands import Operands
from quantdispatch.registry.resolution import Resolution
from quantdispatch.registry.scheme import LayerShape

Args = dict[str, Any]


def weights(bits: int = 4, strategy: Any = 32, *, symmetric: bool = True, kind: str = "int", **more: Any) -> Args:
    how: Args = {"strategy": strategy}
    if isinstance(strategy, int):
        how = {"strategy": "group", "group_size": strategy}
    if isinstance(strategy, tuple):
        how = {"strategy": "block", "block_structure": list(strategy)}
    return {"num_bits": bits, "type": kind, "symmetric": symmetric, "dynamic": False, **how, **more}


def inputs(strategy: str = "token", *, symmetric: bool = True, kind: str = "int") -> Args:
    return {**weights(8, strategy, symmetric=symmetric, kind=kind), "dynamic": strategy == "token"}


def config(*groups: tuple[list[str], Args, Args | None, str], ignore: list[str] | None = None, **more: Any) -> Args:
    """``groups``: targets, weights, inputs, format."""
    formats = {form for *_, form in groups}
    return {
        "quant_method": "compressed-tensors",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "config_groups": {
            f"group_{i}": {"targets": t, "weights": w, "input_activations": a, "format": f}
            for i, (t, w, a, f) in enumerate(groups)
        },
        "ignore": ignore or [],
        **more,
    }


@dataclass
class Stored:
    """A layer of a checkpoint: its tensors by local name, and what it computes."""

    tensors: dict[str, Tensor]
    operands: Operands
    numerics: Any

    def __call__(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.numerics.forward(x, self.operands))


def stored(block: Mapping[str, Any], name: str, n: int, k: int, kind: str = "linear") -> Stored:
    layer = LayerTable(block).layer(name, kind)
    assert layer.error is None and layer.scheme_object is not None, layer.error
    scheme = layer.scheme_object
    numerics = load_target(scheme.numerics)(scheme.layer)
    if layer.scheme == "dense":
        weight = torch.randn(n, k) / k**0.5
        return Stored({"weight": weight}, Operands(codes=weight, scale=None), _Dense())
    operands = _operands(layer, n, k)
    tensors = dict(numerics.stored(operands, LayerShape(n, k, "dense")))
    # read again, for some of what is stored is rounded
    return Stored(tensors, numerics.operands(tensors, LayerShape(n, k, "dense"), name), numerics)


class _Dense:
    def forward(self, x: Tensor, operands: Operands) -> Tensor:
        return x @ operands.codes.to(x.dtype).T


def _operands(layer: Resolution, n: int, k: int) -> Operands:
    args = layer.weights
    assert args is not None
    grid = {
        "tensor": (1, 1), "channel": (n, 1), "group": (n, k // (args.group_size or k)),
        "block": (-(-n // args.block_structure[0]), -(-k // args.block_structure[1])) if args.block_structure else (),
    }[args.strategy]  # fmt: skip
    scale = torch.rand(grid) * 0.01 + 0.005
    half = 2 ** (args.num_bits - 1)
    if args.type == "int":
        operands = Operands(torch.randint(-half, half, (n, k), dtype=torch.int8), scale)
        if not args.symmetric:
            operands.zero_point = torch.randint(-half, half, grid, dtype=torch.int8)
        if args.actorder == "group":
            size = args.group_size or k
            operands.g_idx = (torch.randperm(k) // size).to(torch.int32)
    elif args.num_bits == 8:
        operands = Operands((torch.randn(n, k) * 20).to(torch.float8_e4m3fn), scale)
    else:  # mxfp4: the values of e2m1, and exponents of two
        values = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6])
        codes = values[torch.randint(0, 8, (n, k))] * (torch.randint(0, 2, (n, k)) * 2 - 1)
        operands = Operands(codes.to(torch.float8_e4m3fn), torch.randint(120, 125, grid, dtype=torch.uint8))
    seen = layer.inputs
    if seen is not None and not seen.dynamic:
        operands.input_scale = torch.tensor([0.03])
        if not seen.symmetric:
            operands.input_zero_point = torch.tensor([-17], dtype=torch.int8)
    return operands
