"""What is between the projections of an expert, and all experts of a layer as one function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quantdispatch.engines.adapters.parts import Bound, stack
from quantdispatch.registry.errors import ConfigError

#: x [T, H], int64 [T, k] and fp32 [T, k] to [T, H]; an index of E adds nothing
Run = Callable[[Tensor, Tensor, Tensor], Tensor]
#: [rows, 2 I] or, without a gate, [rows, I] to [rows, I]; and its name for a fused kernel, if one may know it
Activation = tuple[Callable[[Tensor], Tensor], str | None]
_PLAIN: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "silu": (F.silu, "silu"),
    # as SGLang's GeluAndMul computes it where nothing else is said
    "gelu": (partial(F.gelu, approximate="tanh"), "gelu_tanh"),
}


def gated(config: Any) -> Activation:
    """What a ``MoeRunnerConfig`` of SGLang asks for. Raises ``ConfigError`` for activations that are not known."""
    known = _PLAIN.get(config.activation)
    if known is None or config.gemm1_alpha is not None or config.gemm1_beta is not None or config.no_combine:
        alpha = "" if config.gemm1_alpha is None else f", alpha {config.gemm1_alpha}"
        raise ConfigError(
            "the activation of these experts is not computed by quantdispatch in SGLang", field="activation",
            observed=f"{config.activation}{alpha}{', not combined' if config.no_combine else ''}",
            required=" | ".join(_PLAIN), remedy="leave the model to SGLang: QUANTDISPATCH_SGLANG=0",
            code="QD516",
        )  # fmt: skip
    function, name = known
    limits = [v for v in (config.swiglu_limit, config.gemm1_clamp_limit) if v is not None]
    if not config.is_gated:
        return function, name
    limit = min(limits) if limits else None
    return partial(_gate, function, limit), None if limits else name


def _gate(function: Callable[[Tensor], Tensor], limit: float | None, hidden: Tensor) -> Tensor:
    gate, up = hidden.chunk(2, dim=-1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return function(gate) * up


def runner(experts: list[list[Bound]], activation: Activation, hidden: int) -> Run:
    """``experts``: of each its projections, the last one writing the hidden state."""
    function, name = activation
    first = [[(one.impl, one.state) for one in own[:-1]] for own in experts]
    last = [(own[-1].impl, own[-1].state) for own in experts]
    fuse = getattr(type(last[0][0]), "fuse", None)
    if fuse is not None and name is not None and len({type(one.impl) for own in experts for one in own}) == 1:
        fused: Run | None = fuse(first, last, name)
        if fused is not None:
            return fused
    return partial(_one_by_one, [(stack(own[:-1]), own[-1]) for own in experts], function)


def _one_by_one(
    experts: list[tuple[list[Bound], Bound]],
    activation: Callable[[Tensor], Tensor],
    x: Tensor,
    index: Tensor,
    weights: Tensor,
) -> Tensor:
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for number in index.unique().tolist():
        if number >= len(experts):
            continue
        rows, place = (index == number).nonzero(as_tuple=True)
        first, last = experts[number]
        hidden = torch.cat([one(x[rows]) for one in first], dim=-1)
        total.index_add_(0, rows, last(activation(hidden)).float() * weights[rows, place].unsqueeze(-1))
    return total.to(x.dtype)
