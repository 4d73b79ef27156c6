"""All experts of a layer in one call of their kernel: tokens sorted, gate and up, activation, down, weighted sum.

A kernel that can do so has a function ``fuse`` (see :class:`Fusing`). The modules stay what they are and keep their
tensors: what is made here only refers to them, and is made again when they were loaded, moved, cast or replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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


class Member(NamedTuple):
    """One projection as it was when it was fused."""

    siblings: dict[str, nn.Module | None]
    name: str
    module: QuantLinear
    impl: Any
    tensors: list[tuple[str, Tensor, int]]  # and the address: a tensor may be given other memory


@dataclass
class Fused:
    """The function for all experts of a layer, and what it was made from."""

    run: Run
    activation: str
    dtype: torch.dtype
    features: int
    experts: list[tuple[Member, ...]]

    def takes(self, x: Tensor, weights: Tensor) -> bool:
        """Plain tensors without a gradient. What does not fit is left to the layers, which say what is wrong."""
        if type(x) is not Tensor or x.dtype is not self.dtype or x.shape[-1] != self.features or not x.is_cpu:
            return False
        return not (torch.is_grad_enabled() and (x.requires_grad or weights.requires_grad))

    def holds(self, chosen: Iterable[int]) -> bool:
        """Are these experts still the ones that this was made from, and does nobody listen to a single one?

        Asked for every token: dictionaries are looked into directly, as nn.Module's attribute access would."""
        experts, count = self.experts, len(self.experts)
        for number in chosen:
            if not 0 <= number < count:
                continue
            for siblings, name, module, impl, tensors in experts[number]:
                own = module.__dict__
                if siblings.get(name) is not module or own["_impl"] is not impl:
                    return False
                if own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own:
                    return False
                buffers = own["_buffers"]
                for key, tensor, address in tensors:
                    if buffers.get(key) is not tensor or tensor.data_ptr() != address:
                        return False
        return True

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
    method: Fusing | None = getattr(type(members[0][0].impl), "fuse", None)
    if method is None or any(type(m.impl) is not type(members[0][0].impl) for own in members for m in own):
        return None
    bound = [[(member.impl, {name: tensor for name, tensor, _ in member.tensors}) for member in own] for own in members]
    run = method([own[:-1] for own in bound], [own[-1] for own in bound], activation)
    if run is None:
        return None
    module = members[0][0].module
    return Fused(run, activation, module.dtype, module.in_features, members)


def _member(siblings: dict[str, nn.Module | None], name: str) -> Member | None:
    module = siblings.get(name)
    if type(module) is not QuantLinear or not module.loaded or has_hooks(module):
        return None
    tensors = [(name, t, t.data_ptr()) for name, t in module._buffers.items() if t is not None]
    return Member(siblings, name, module, module._impl, tensors)
