"""Linear layers that read the same input as one product: fewer calls, each of them larger, which shows at one token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .modules import QuantLinear


@dataclass
class Stacked:
    """One kernel and its state for layers that keep their own tensors, as views of its."""

    impl: Any
    state: dict[str, Tensor]
    #: of each layer: its kernel, and its tensors
    members: list[tuple[Any, dict[str, Tensor]]]
    #: of those tensors: they may be given other memory
    addresses: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.addresses = [tensor.data_ptr() for _, state in self.members for tensor in state.values()]

    def holds(self, modules: Sequence[Any]) -> bool:
        """Are these still the modules' tensors, not loaded again, moved or cast, and does nobody listen to one module
        by itself?"""
        for module, (impl, state) in zip(modules, self.members, strict=True):
            if type(module) is not QuantLinear or module._impl is not impl or has_hooks(module):
                return False
            buffers = module._buffers
            for name, tensor in state.items():
                if buffers.get(name) is not tensor:
                    return False
        return [tensor.data_ptr() for _, state in self.members for tensor in state.values()] == self.addresses


def stack(modules: Sequence[Any]) -> Stacked | None:
    """Make the modules' tensors views of stacked ones, if their kernel can compute them together (it has a method
    ``stack``) and nobody would miss the calls of the single modules. Results are the same."""
    if len(modules) < 2 or torch.compiler.is_compiling():
        return None
    if any(type(module) is not QuantLinear or not module.loaded or has_hooks(module) for module in modules):
        return None
    layers = [(module._impl, module._buffers) for module in modules]
    method = getattr(layers[0][0], "stack", None)
    if method is None or any(type(impl) is not type(layers[0][0]) for impl, _ in layers):
        return None
    made = method(layers)
    if made is None:
        return None
    impl, state, parts = made
    for module, part in zip(modules, parts, strict=True):
        module._buffers.update(part)
    return Stacked(impl, state, [(module._impl, part) for module, part in zip(modules, parts, strict=True)])


def has_hooks(module: torch.nn.Module) -> bool:
    """Does anybody listen to calls of this module by itself?"""
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
