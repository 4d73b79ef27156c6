"""Routed experts whose projections stay packed, each in its own layout.

The module takes the place of a model's own experts and is called like them: with the hidden states, the indices that
the router chose and their weights. Routing, gate and activation stay the model's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from types import MethodType
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from . import experts_op
from .fused_experts import Fused, fuse
from .modules import QuantLinear
from .stacking import Stacked, stack
from .transforms import plain

#: [rows, 2 I] of gate and up, side by side, to [rows, I]; or [rows, I] to [rows, I] for experts without a gate
Activation = Callable[[Tensor], Tensor]


class Expert(nn.Module):
    """One expert: the projections that read the hidden state, in the model's order, and the one that writes it.

    They are children under the names that they have in the file, so that a ``state_dict`` has those names too.
    """

    def __init__(self, first: Sequence[tuple[str, nn.Module]], last: tuple[str, nn.Module]) -> None:
        super().__init__()
        for name, module in (*first, last):
            self.add_module(name, module)
        self._first = tuple(name for name, _ in first)
        self._last = last[0]
        self._stacked: Stacked | None = None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._stacked = None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def projections(self) -> tuple[list[nn.Module], nn.Module]:
        """Those that read the hidden state, and the one that writes it; current ones, for they may be replaced."""
        modules = cast("dict[str, nn.Module]", self._modules)
        return [modules[name] for name in self._first], modules[self._last]

    def parts(self) -> tuple[dict[str, nn.Module | None], tuple[str, ...], str]:
        """The children, and which of them read the hidden state and which one writes it."""
        return self._modules, self._first, self._last

    def run(self, x: Tensor, activation: Activation) -> Tensor:
        """x [rows, H] to [rows, H]."""
        first, last = self.projections()
        stacked = self._stacked
        if stacked is None or not stacked.holds(first):
            stacked = self._stacked = stack(first)
        if stacked is not None:
            hidden = stacked.impl.apply(x, stacked.state)
        else:
            parts = [module(x) for module in first]
            hidden = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        result: Tensor = last(activation(hidden))
        return result


class QuantExperts(nn.Module):
    """Experts 0 to E - 1, children under their numbers. Computes those that are chosen and no others."""

    original: nn.Module
    _activation: Activation
    _known: Callable[[nn.Module], str | None] | None

    def __init__(
        self,
        experts: Sequence[Expert],
        activation: Activation,
        original: nn.Module,
        known: Callable[[nn.Module], str | None] | None = None,
    ) -> None:
        """``activation``: of the model's own experts. ``original``: that module, its stacked weights empty.
        ``known``: the name of its activation, in the words of :class:`~.fused_experts.Fusing`, or ``None`` for one that
        only the model knows; asked in every call, for modules can be changed."""
        super().__init__()
        for number, expert in enumerate(experts):
            self.add_module(str(number), expert)
        self.num_experts = len(experts)
        # not children: nothing of theirs is stored or moved
        object.__setattr__(self, "_activation", activation)
        object.__setattr__(self, "original", original)
        object.__setattr__(self, "_known", known)
        self._fused: Fused | None = None
        self._number = experts_op.enter(self)

    def __getstate__(self) -> dict[str, Any]:
        """A bound method is pickled as a look-up in an object that is not whole yet when it is read."""
        state = dict(self.__dict__)
        if getattr(self._activation, "__self__", None) is self.original:
            state["_activation"] = None
            state["_method"] = cast(MethodType, self._activation).__func__
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        method = state.pop("_method", None)
        if method is not None:
            state["_activation"] = MethodType(method, state["original"])
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._number = experts_op.enter(self)

    def expert(self, number: int) -> Expert:
        return cast(Expert, self._modules[str(number)])

    def dequantize(self, dtype: torch.dtype | None = None) -> nn.Module:
        """The model's own experts again, with dense stacked weights; by default in the dtype of the activations."""
        experts = [self.expert(number).projections() for number in range(self.num_experts)]
        first = [torch.cat([_dense(module, dtype) for module in modules]) for modules, _ in experts]
        original: nn.Module = copy(self.original)
        original._parameters = dict(original._parameters)
        for name in original._parameters:
            stacked = first if name != "down_proj" else [_dense(module, dtype) for _, module in experts]
            original._parameters[name] = nn.Parameter(torch.stack(stacked), requires_grad=False)
        return original.train(self.training)

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """``hidden_states`` [T, H], ``top_k_index`` int [T, k], ``top_k_weights`` [T, k] to [T, H] in the dtype of the
        hidden states: the weighted sum over the chosen experts, added up in fp32. An index outside 0..E-1 (an
        expert that lives elsewhere: E in transformers, -1 in engines) adds nothing."""
        if torch.compiler.is_dynamo_compiling() and not torch.compiler.is_exporting():
            gradient = torch.is_grad_enabled() and (hidden_states.requires_grad or top_k_weights.requires_grad)
            if not gradient:
                result: Tensor = experts_op.call(hidden_states, top_k_index, top_k_weights, self._number)
                return result
        return self.compute(hidden_states, top_k_index, top_k_weights)

    def compute(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """What a call of the module computes, without its hooks."""
        fused = self._fuse(hidden_states, top_k_index, top_k_weights)
        if fused is not None:
            return fused.run(hidden_states, top_k_index, top_k_weights)
        total = torch.zeros(hidden_states.shape, dtype=torch.float32, device=hidden_states.device)
        if hidden_states.shape[0] == 1:
            self._add_one(total, hidden_states, top_k_index[0].tolist(), top_k_weights[0])
        else:
            for number, rows, weights in _by_expert(top_k_index, top_k_weights, self.num_experts):
                part = self._expert(number, hidden_states[rows])
                total.index_add_(0, rows, part.float() * weights.float().unsqueeze(-1))
        return total.to(hidden_states.dtype)

    def _fuse(self, x: Tensor, index: Tensor, weights: Tensor) -> Fused | None:
        """One call for all experts, where their kernel has it and takes this input."""
        if self._known is None or torch.compiler.is_compiling():
            return None
        activation = self._known(self.original)
        if activation is None:
            return None
        fused = self._fused
        # of many tokens nearly all experts are chosen; and reading the choice off a GPU would wait for it
        chosen = index[0].tolist() if x.shape[0] == 1 and index.is_cpu else range(self.num_experts)
        if fused is None or fused.activation != activation or not fused.holds(chosen):
            experts = [self.expert(number).parts() for number in range(self.num_experts)]
            fused = self._fused = fuse(experts, activation)
        return fused if fused is not None and fused.takes(x, weights) else None

    def _add_one(self, total: Tensor, x: Tensor, chosen: list[int], weights: Tensor) -> None:
        """One token needs no sorting, and in decoding there is one."""
        for number, weight in zip(chosen, weights.float().unbind(), strict=True):
            if 0 <= number < self.num_experts:
                total += self._expert(number, x).float() * weight

    def _expert(self, number: int, x: Tensor) -> Tensor:
        return self.expert(number).run(x, self._activation)


def _dense(module: nn.Module, dtype: torch.dtype | None) -> Tensor:
    dense = module.dequantize(dtype) if isinstance(module, QuantLinear) else plain(cast(nn.Linear, module))
    weight = dense.weight.detach()
    return weight if dtype is None else weight.to(dtype)


def _by_expert(index: Tensor, weights: Tensor, experts: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(expert, its rows [r], their weights [r]) for every expert that has rows."""
    flat = index.reshape(-1)
    # those that live elsewhere sort behind all others
    flat = torch.where((flat >= 0) & (flat < experts), flat, experts)
    order = flat.argsort(stable=True)
    rows, ordered = order // index.shape[-1], weights.reshape(-1)[order]
    start = 0
    for number, count in enumerate(flat.bincount(minlength=experts).tolist()[:experts]):
        if count:
            yield number, rows[start : start + count], ordered[start : start + count]
        start += count
