"""Routed experts in grouped launches, in the interpreter against float64, over random layers."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from quantdispatch.backends.triton.compat import INTERPRETED
from quantdispatch.backends.triton.experts import ExpertLinear, sort
from quantdispatch.registry.args import QuantArgs

#: of a relative norm: hidden values are rounded to 16 bits, and the result
LIMITS = {"float16": 1.5e-3, "bfloat16": 6e-3}
CASES = 200


def _int(bits: int, group: int | None, symmetric: bool) -> QuantArgs:
    shape: dict[str, Any] = {"strategy": "group", "group_size": group} if group else {"strategy": "channel"}
    return QuantArgs(type="int", num_bits=bits, symmetric=symmetric, **shape)


def _forms(random_: random.Random) -> tuple[QuantArgs, QuantArgs | None]:
    kind = random_.choice(("int", "int", "int", "fp8", "nvfp4", "mxfp4", "w8a8", "fp8 x fp8"))
    if kind == "int":
        return _int(random_.choice((4, 4, 8)), random_.choice((None, 32)), random_.random() < 0.5), None
    if kind == "nvfp4":
        return QuantArgs(type="float", num_bits=4, strategy="tensor_group", group_size=16), None
    if kind == "mxfp4":
        return QuantArgs(type="float", num_bits=4, strategy="group", group_size=32, scale_dtype="uint8"), None
    if kind == "w8a8":
        return _int(8, None, True), QuantArgs(type="int", num_bits=8, strategy="token", dynamic=True)
    weights = QuantArgs(type="float", num_bits=8, strategy="channel")
    return weights, QuantArgs(type="float", num_bits=8, strategy="token", dynamic=True) if kind != "fp8" else None


@pytest.mark.parametrize("seed", range(CASES))
def test_layers_are_exact_but_for_rounding(seed: int, layers: Any) -> None:
    assert INTERPRETED
    random_ = random.Random(seed)
    weights, inputs = _forms(random_)
    experts, chosen, tokens = random_.randint(1, 4), random_.randint(1, 2), random_.choice((1, 1, 2, 5, 20))
    hidden, inner = 32 * random_.randint(1, 2), 32 * random_.randint(1, 2)
    dtype = random_.choice(("float16", "bfloat16"))
    gated, bias = random_.random() < 0.8, random_.random() < 0.3
    made, bound = [], []
    for expert in range(experts):
        sizes = [(inner, hidden)] * (2 if gated else 1) + [(hidden, inner)]
        own = [
            layers.make(weights, inputs, n=n, k=k, dtype=dtype, bias=bias, kind="moe", seed=9 * expert + part + seed)
            for part, (n, k) in enumerate(sizes)
        ]
        for layer in own:
            _tame(layer)
        impls = [ExpertLinear(layer.spec) for layer in own]
        made.append(own)
        bound.append([(impl, impl.pack(layer.operands)) for impl, layer in zip(impls, own, strict=True)])
    run = ExpertLinear.fuse([own[:-1] for own in bound], [own[-1] for own in bound], "silu")
    assert run is not None
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, hidden, generator=generator).to(getattr(torch, dtype))
    # one more than there are: an expert that lives elsewhere
    index = torch.randint(0, experts + 1, (tokens, chosen), generator=generator)
    share = torch.rand(tokens, chosen, generator=generator)
    exact = torch.zeros(tokens, hidden, dtype=torch.float64)
    for expert, own in enumerate(made):
        rows, places = torch.where(index == expert)
        if rows.numel():
            gate, *up = (layer.output(x[rows]) for layer in own[:-1])
            middle = F.silu(gate) * up[0] if up else F.silu(gate)
            part = own[-1].output(middle.to(x.dtype))
            exact.index_add_(0, rows, part * share[rows, places, None].double())
    y = run(x, index, share)
    assert y.dtype == x.dtype and y.shape == x.shape
    if exact.any():
        # inputs that are quantized can fall on the other side of a step
        assert layers.error(y, exact) < LIMITS[dtype] * (1 if inputs is None else 4)
    else:
        assert not y.any()


def _tame(layer: Any) -> None:
    """Scales with which outputs are about as large as inputs."""
    o = layer.operands
    if o.scale.dtype != torch.uint8 and o.global_scale is None:
        o.scale = (o.scale.double() / layer.weight().norm(dim=1).mean().clamp(min=1e-6)).to(o.scale.dtype)


@pytest.mark.parametrize(
    "tokens, chosen, experts, rows", [(1, 2, 8, 16), (40, 3, 5, 16), (7, 1, 3, 32), (64, 8, 64, 16)]
)
def test_sorted_pairs(tokens: int, chosen: int, experts: int, rows: int) -> None:
    """Every pair of an expert that is here stands once, in a block of its expert, and no other does."""
    index = torch.randint(-1, experts + 1, (tokens, chosen), generator=torch.Generator().manual_seed(tokens))
    places = sort(index, experts, rows)
    found = {}
    for number, expert in enumerate(places.blocks.tolist()):
        for pair in places.pairs[number * rows : (number + 1) * rows].tolist():
            if pair >= 0:
                assert pair not in found
                found[pair] = expert
    flat = index.flatten().tolist()
    assert found == {pair: expert for pair, expert in enumerate(flat) if 0 <= expert < experts}
