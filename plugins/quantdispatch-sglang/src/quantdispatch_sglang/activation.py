"""What is between the projections of an expert."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from quantdispatch.engines.adapters.experts import Activation
from quantdispatch.registry.errors import ConfigError

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
