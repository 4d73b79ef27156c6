"""Routed experts on a device: the fused call of a Triton kernel beside bf16 products, one an expert."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quantdispatch.registry.args import QuantArgs

from . import gpu_layers, gpu_timing
from .gpu_forms import LIMIT, Run, bound

#: experts, hidden size, inner size, experts of a token
REAL, SMALL = (8, 4096, 14336, 2), (2, 64, 32, 1)


def measure(run: Run, tokens: tuple[int, ...]) -> None:
    """int4 g128 experts with SiLU gates: the error against float64 where that fits, then times."""
    experts, hidden, inner, chosen = SMALL if run.dry else REAL
    args = QuantArgs(num_bits=4, strategy="group", group_size=32 if run.dry else 128)
    dtype = "float16" if run.dry else "bfloat16"

    def layer(n: int, k: int, seed: int) -> gpu_layers.Layer:
        # an even seed has a bias, which experts have not
        return gpu_layers.make("wNa16_int", args, None, n, k, dtype, run.device, 2 * seed + 1, kind="moe")

    parts = [(layer(inner, hidden, e), layer(inner, hidden, e + 100), layer(hidden, inner, e + 200))
             for e in range(experts)]  # fmt: skip
    name, impl = bound(parts[0][0], run.device)
    make: Any = getattr(type(impl), "fuse", None)
    if make is None:
        run.say(f"  no fused experts: {name}")
        return
    held = [[(bound(one, run.device)[1], one) for one in own] for own in parts]
    packed = [[(own_impl, own_impl.pack(one.operands)) for own_impl, one in own] for own in held]
    fused = make([own[:2] for own in packed], [own[2] for own in packed], "silu")
    if fused is None:
        run.say(f"  {name} does not fuse these experts")
        return
    generator = torch.Generator(run.device).manual_seed(3)
    for m in tokens:
        x = torch.randn(m, hidden, generator=generator, device=run.device).to(getattr(torch, dtype)) * 0.1
        scores = torch.rand(m, experts, generator=generator, device=run.device)
        weights, index = scores.softmax(-1).topk(chosen, dim=-1)
        exact = _exact(parts, x, index, weights)
        error = float((fused(x, index, weights).double() - exact).norm() / exact.norm())
        run.failed += not error < 2 * LIMIT[dtype]
        took = gpu_timing.seconds([lambda x=x, i=index, w=weights: fused(x, i, w)], run.device)  # type: ignore[misc]
        dense = gpu_timing.seconds([_dense(run, experts, hidden, inner, x, index, weights)], run.device)
        row = {"m": m, "error": error, "seconds": took, "bf16_seconds": dense, "ratio": dense / took, "kernel": name}
        run.results.setdefault("moe", []).append(row)
        run.say(f"  M={m} error {error:.1e}  {took * 1e6:.1f} us, bf16 {dense * 1e6:.1f} us, ratio {dense / took:.2f}")


def _exact(parts: list[tuple[gpu_layers.Layer, ...]], x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    total = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for expert, (gate, up, down) in enumerate(parts):
        rows, slots = (index == expert).nonzero(as_tuple=True)
        if not rows.numel():
            continue
        own = x[rows].double()
        y = (F.silu(own @ gate.weight().T) * (own @ up.weight().T)) @ down.weight().T
        total.index_add_(0, rows, y * weights[rows, slots].double()[:, None])
    return total


def _dense(run: Run, experts: int, hidden: int, inner: int, x: Tensor, index: Tensor, weights: Tensor) -> Callable[[], Tensor]:  # fmt: skip  # noqa: E501
    """The same with bf16 weights, one product an expert; which tokens go where is known beforehand."""
    dtype = x.dtype
    made = [[torch.randn(*shape, device=x.device, dtype=dtype) * 0.02 for shape in
             ((inner, hidden), (inner, hidden), (hidden, inner))] for _ in range(experts)]  # fmt: skip
    routes = [(index == expert).nonzero(as_tuple=True) for expert in range(experts)]
    factors = [weights[rows, slots].to(dtype)[:, None] for rows, slots in routes]

    def call() -> Tensor:
        total = torch.zeros_like(x)
        for (gate, up, down), (rows, _), factor in zip(made, routes, factors, strict=True):
            if rows.numel():
                own = x[rows]
                y = (F.silu(own @ gate.t()) * (own @ up.t())) @ down.t()
                total.index_add_(0, rows, y * factor)
        return total

    return call
