"""Which activation the experts of a model apply, where it is one that kernels know."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import nn
from transformers import activations
from transformers.integrations import moe

from ..stacking import has_hooks

_DEFAULT_GATE = getattr(moe, "_default_apply_gate", None)
_SILU = tuple(getattr(activations, name) for name in ("SiLUActivation",) if hasattr(activations, name))
_GELU = tuple(getattr(activations, name) for name in ("GELUActivation",) if hasattr(activations, name))
_TANH = tuple(
    getattr(activations, name) for name in ("GELUTanh", "PytorchGELUTanh") if hasattr(activations, name)
)  # the second is the name in older releases


def known_activation(experts: nn.Module) -> str | None:
    """``"silu"``, ``"gelu"`` or ``"gelu_tanh"`` if the experts compute ``act(gate) * up``, or ``act(up)`` where they
    have no gate, with exactly that function and nobody listening to it; ``None`` for anything else.

    By the objects themselves: a model that clamps or scales in between has an ``_apply_gate`` of its own.
    """
    if getattr(experts, "has_gate", True):
        gate = getattr(experts, "_apply_gate", None)
        if _DEFAULT_GATE is None or getattr(gate, "__func__", None) is not _DEFAULT_GATE:
            return None
    function: Any = getattr(experts, "act_fn", None)
    if not isinstance(function, nn.Module):
        return _of_function(function)
    if has_hooks(function) or "forward" in vars(function):
        return None
    kind = type(function)
    if kind is nn.SiLU or kind in _SILU:
        return "silu"
    if kind is nn.GELU:
        return "gelu_tanh" if function.approximate == "tanh" else "gelu"
    if kind in (*_GELU, *_TANH):
        return _of_function(getattr(function, "act", None))
    return None


def _of_function(function: Any) -> str | None:
    if isinstance(function, partial):
        tanh = function.func is F.gelu and not function.args and function.keywords == {"approximate": "tanh"}
        return "gelu_tanh" if tanh else None
    if function is F.silu:
        return "silu"
    return "gelu" if function is F.gelu else None
