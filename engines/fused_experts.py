"""All experts of a layer in one call of their kernel: tokens sorted, gate and up, activation, down, weighted sum.

A kernel that can do so has a function ``fuse`` (see :class:`Fusing`). The modules stay what they are and keep their
tensors: what is made here only refers to them, and is made again when they were loaded, moved, cast or replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from operator import is_
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from .modules import QuantLinear
from .stacking import has_hooks

#: x [T, H] in the layers' dtype, int64 [T, k] and fp32 [T, k] to [T, H]: the weighted sum over the chosen experts
Run = Callable[[Tensor, Tensor, Tensor], Tensor]
#: a kernel bound to a layer, and its tensors
Bound = tuple[Any, dict[str, Tensor]]


class Fusing(Protocol):
    """What a kernel's class offers as ``fuse``, beside the methods of every kernel."""

    def __call__(self, first: Sequence[Sequence[Bound]], last: Sequence[Bound], activation: str) -> Run | None:
        """``first``: of each expert the gate and what it gates, or the one projection that reads the hidden state
        where there is no gate. ``last``: of each expert the projection that writes it. ``activation``: ``"silu"``,
        ``"gelu"`` or ``"gelu_tanh"``, of the gate. ``None`` where these layers cannot be computed together.

        The function refers to the tensors that it was made with, and is called as long as they are the layers'.
        """


class Watched(NamedTuple):
    """What an expert was when it was fused, so that looking at it again takes a few microseconds for a token's experts:
    dictionaries looked into directly, all of them in loops that run in C."""

    places: tuple[dict[str, Any], ...]
    keys: tuple[str, ...]
    values: tuple[Any, ...]
    hooks: tuple[Sized, ...]
    tensors: tuple[Tensor, ...]
    addresses: list[int]  # a tensor may be given other memory

    def holds(self) -> bool:
        """Is it still that, and does nobody listen to one of its projections?"""
        return (
            all(map(is_, map(dict.get, self.places, self.keys), self.values))
            and not any(map(len, self.hooks))
            and list(map(Tensor.data_ptr, self.tensors)) == self.addresses
        )


class Member(NamedTuple):
    """One projection as it is when it is fused."""

    siblings: dict[str, nn.Module | None]
    name: str
    module: QuantLinear

    def places(self) -> Iterator[tuple[dict[str, Any], str, Any]]:
        """What must stay: where it lies, under which key, and what it is."""
        own, buffers = self.module.__dict__, self.module._buffers
        yield self.siblings, self.name, self.module
        for name in ("_impl", "_buffers", "_forward_hooks", "_forward_pre_hooks"):
            yield own, name, own[name]
        yield own, "forward", None
        for name in buffers:
            yield buffers, name, buffers[name]

    def tensors(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in self.module._buffers.items() if tensor is not None}

    def hooks(self) -> tuple[Sized, ...]:
        return self.module._forward_hooks, self.module._forward_pre_hooks


@dataclass
class Fused:
    """The function for all experts of a layer, and what it was made from."""

    run: Run
    activation: str
    dtype: torch.dtype
    features: int
    device: torch.device
    experts: list[Watched]

    def takes(self, x: Tensor, weights: Tensor) -> bool:
        """Plain tensors where the experts are, without a gradient. What does not fit is left to the layers, which say
        what is wrong."""
        if type(x) is not Tensor or x.dtype is not self.dtype or x.shape[-1] != self.features:
            return False
        if x.device != self.device:
            return False
        return not (torch.is_grad_enabled() and (x.requires_grad or weights.requires_grad))

    def holds(self, chosen: Iterable[int]) -> bool:
        """Are these experts still the ones that this was made from? Asked for every token."""
        experts, count = self.experts, len(self.experts)
        return all(experts[number].holds() for number in chosen if 0 <= number < count)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of the module makes its own: this one refers to the tensors of the original.
        return type(None), ()


def fuse(experts: Sequence[tuple[dict[str, nn.Module | None], tuple[str, ...], str]], activation: str) -> Fused | None:
    """``experts``: of each its children, the names of those that read the hidden state, and of the one that writes it.

    ``None`` unless all are packed, bound to kernels that can compute them together, and called by nobody else.
    """
    members: list[tuple[Member, ...]] = []
    for children, first, last in experts:
        own = [_member(children, name) for name in (*first, last)]
        if not own or any(member is None for member in own):
            return None
        members.append(tuple(member for member in own if member is not None))
    if not members or torch.compiler.is_compiling():
        return None
    kernel = type(members[0][0].module._impl)
    method: Fusing | None = getattr(kernel, "fuse", None)
    if method is None or any(type(member.module._impl) is not kernel for own in members for member in own):
        return None
    bound = [[(member.module._impl, member.tensors()) for member in own] for own in members]
    run = method([own[:-1] for own in bound], [own[-1] for own in bound], activation)
    if run is None:
        return None
    module = members[0][0].module
    # watched from here on: a kernel may have put the experts' weights into one memory
    watched = [_watched(own) for own in members]
    return Fused(run, activation, module.dtype, module.in_features, module.device, watched)


def _member(siblings: dict[str, nn.Module | None], name: str) -> Member | None:
    module = siblings.get(name)
    if type(module) is not QuantLinear or not module.loaded or has_hooks(module):
        return None
    return Member(siblings, name, module)


def _watched(members: Sequence[Member]) -> Watched:
    places, keys, values = zip(*(place for member in members for place in member.places()), strict=True)
    tensors = tuple(tensor for member in members for tensor in member.tensors().values())
    hooks = tuple(hook for member in members for hook in member.hooks())
    return Watched(places, keys, values, hooks, tensors, [tensor.data_ptr() for tensor in tensors])
