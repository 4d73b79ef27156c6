"""All routed experts of a layer: three products over tokens sorted by expert, for any mix of tokens and experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ...registry.errors import QuantDispatchError
from ..device_linear import there
from .providers import Adapter, Routing, Weight, adapter
from .routing import route

if TYPE_CHECKING:
    from .linear import MarlinLinear

Bound = tuple["MarlinLinear", Mapping[str, Tensor]]
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
#: entries of a layer's state that the product reads
_READ = ("codes", "scales", "zeros", "whole", "rest", "bias")


def fuse(
    first: Sequence[Sequence[Bound]], last: Sequence[Bound], activation: str
) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """One function for all experts; see ``engines.fused_experts.Fusing``. ``None`` where they cannot be computed
    together: another activation, shapes or forms that differ, columns ordered by each expert for itself."""
    if activation not in ACTIVATIONS or not first or any(len(own) != len(first[0]) for own in first):
        return None
    parts = [[own[i] for own in first] for i in range(len(first[0]))]
    if len(parts) not in (1, 2) or not all(_alike(bound) for bound in (*parts, last)):
        return None
    if any(bound[0][0].dtype != last[0][0].dtype or bound[0][0].k != last[0][0].n for bound in parts):
        return None
    if any(bound[0][0].n != last[0][0].k for bound in parts):
        return None
    ops = adapter(last[0][0].provider)
    ops.check_moe()
    return Experts(ops, [Stack(bound) for bound in parts], Stack(last), activation)


def _alike(bound: Sequence[Bound]) -> bool:
    impl, state = bound[0]
    shapes = {name: (tensor.shape, tensor.dtype, tensor.device) for name, tensor in state.items() if name in _READ}
    for other, own in bound:
        if "columns" in own or (other.n, other.k, other.form, other.dtype) != (impl.n, impl.k, impl.form, impl.dtype):
            return False
        if {name: (t.shape, t.dtype, t.device) for name, t in own.items() if name in _READ} != shapes:
            return False
    return True


class Stack:
    """One projection of all experts. The experts' own tensors become views of the stacked ones: nothing is held
    twice."""

    @torch.no_grad()
    def __init__(self, bound: Sequence[Bound]) -> None:
        impl, state = bound[0]
        self.n, self.k = impl.n, impl.k
        stacked = {name: _stack([own[name] for _, own in bound]) for name in _READ if name in state}
        weight = impl.weight(state)
        self.weight: Weight = replace(
            weight, codes=stacked["codes"], scales=stacked["scales"], zeros=stacked.get("zeros"),
            whole=_flat(stacked.get("whole")), bias=None,
        )  # fmt: skip
        self.rest = _flat(stacked.get("rest"))
        self.bias = stacked.get("bias")

    def __call__(self, ops: Adapter, x: Tensor, routing: Routing, owner: Tensor, top_k: int, weighted: bool) -> Tensor:
        """x [T, K] to [T * top_k, N]. ``owner``: int64 [T * top_k], the expert of each row."""
        x = F.pad(x, (0, self.weight.k - x.shape[1])) if self.weight.k != x.shape[1] else x.contiguous()
        plain = self.rest is None and self.bias is None
        y = ops.moe_gemm(x, self.weight, routing, top_k, weighted and plain)[:, : self.n]
        if plain:
            return y
        if self.rest is not None:
            y = y.float() * self.rest[owner].unsqueeze(1)
        if self.bias is not None:
            y = y.float() + self.bias[owner]
        return y * routing.weights.reshape(-1, 1) if weighted else y


class Experts:
    """The function of all experts of a layer."""

    def __init__(self, ops: Adapter, first: Sequence[Stack], last: Stack, activation: str) -> None:
        self._ops, self._first, self._last = ops, list(first), last
        self._activation = ACTIVATIONS[activation]
        self._count = last.weight.codes.shape[0]

    def __call__(self, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        """x [T, H], int [T, k], [T, k] to [T, H]: the weighted sum over the chosen experts, added up in fp32."""
        codes = self._last.weight.codes
        if x.ndim != 2 or x.device != codes.device or x.shape[1] != self._last.n:
            raise QuantDispatchError(
                "the input does not fit the experts' kernel", field="x", observed=f"{list(x.shape)} on {x.device}",
                required=f"[tokens, {self._last.n}] on {codes.device}", code="QD801",
            )  # fmt: skip
        tokens, chosen = index.shape
        if tokens == 0:
            return torch.empty_like(x)
        routing = route(index.long(), weights, self._count)
        owner = torch.where((index >= 0) & (index < self._count), index, torch.zeros_like(index)).long().reshape(-1)
        with there(x):
            parts = [stack(self._ops, x, routing, owner, chosen, False) for stack in self._first]
            hidden = self._activation(parts[0].to(x.dtype))
            if len(parts) == 2:
                hidden = hidden * parts[1].to(x.dtype)
            y = self._last(self._ops, hidden, routing, owner, 1, True)
        return y.view(tokens, chosen, self._last.n).float().sum(1).to(x.dtype)


def _stack(tensors: Sequence[Tensor]) -> Tensor:
    """[E, ...] of E tensors of one shape, each of which becomes a view of its part."""
    base = tensors[0]
    carrier = [t.view(torch.uint8) if t.element_size() == 1 else t for t in tensors]
    stacked = torch.stack(carrier).view(base.dtype)
    for number, tensor in enumerate(tensors):
        tensor.set_(stacked[number])  # type: ignore[call-overload]
    return stacked


def _flat(values: Tensor | None) -> Tensor | None:
    return None if values is None else values.reshape(-1)
