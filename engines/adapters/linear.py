"""A linear module of an engine on quantdispatch's kernels: each partition loaded by itself, computed together where
possible.

A module's parameters are empty while weights are loaded: their loaders hand each stored tensor to the part that it
belongs to, which keeps what this rank needs of it. Members of one module may so be quantized each in its own way. What
kernels compute with are buffers of the module, so that compiled graphs take them as inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from ...registry.errors import CheckpointError
from ...registry.resolution import Resolution
from ...registry.scheme import KernelImpl
from .layers import Members
from .parts import Bound, Part, stack
from .report import Report
from .sharding import Shards

#: what an engine's models ask for their ``weight_loader``, made from that
Placeholder = Callable[[Callable[..., Any]], Parameter]


class PartitionedLinear:
    """What an adapter's linear method derives from, beside the engine's own class. ``device``: where it runs, as torch
    or a plan names it."""

    part_class: type[Part] = Part
    members: Members
    report: Report
    shards: Shards
    layers: tuple[Resolution, ...]
    dtype: torch.dtype
    device: Any
    parts: dict[int, Part]
    placeholders: tuple[str, ...] = ()
    kernels: list[tuple[KernelImpl, tuple[tuple[str, str], ...]]]

    def wait(self, layer: Module, make: Placeholder) -> None:
        """Be ready for the tensors of ``layers``, by parameters of ``layer``."""
        self.parts = {}
        self.placeholders = add_placeholders(layer, self.layers, "", make, self.receive)

    def receive(self, name: str, param: Any, loaded_weight: Tensor, shard_id: Any = None) -> None:
        """What an engine's loader calls with a whole stored tensor. ``name``: local, e.g. ``weight_packed``."""
        held = self.shards.of_shard(shard_id, self.members.name)
        for index in held:
            part = self.parts.get(index)
            if part is None:
                part = self.parts[index] = self.part(index, held)
            if name in part.names:
                part.take(name, loaded_weight)

    def part(self, index: int, held: Sequence[int]) -> Part:
        """A part for partition ``index`` of tensors that hold the partitions ``held``."""
        where, count = self.shards.cut(index, held), self.shards.partitions[index].count
        return self.part_class(self.layers[index], where, count, self.shards.k, self.dtype, device=self.device)

    def bind(self, layer: Module) -> None:
        """All tensors are there: choose kernels, and put what they compute with on ``layer``."""
        bound = [self._bound(index) for index in range(len(self.shards.partitions))]
        drop_placeholders(layer, self.placeholders)
        self.placeholders = ()
        for resolved, one in zip(self.layers, bound, strict=True):
            self.report.note(resolved.name, resolved.scheme, one.kernel)
        self._attach(layer, stack(bound))
        self.parts.clear()

    def _bound(self, index: int) -> Bound:
        part = self.parts.get(index)
        if part is None:
            raise CheckpointError(
                "no tensor of this layer was in the weights", layer=self.layers[index].name, field="weights",
                observed="none", required=required_tensors(self.layers[index]),
                remedy="config.json and the weights are of two models, or a file is missing", code="QD654",
            )  # fmt: skip
        return part.bind()

    def _attach(self, layer: Module, bound: Sequence[Bound]) -> None:
        self.kernels = []
        for number, one in enumerate(bound):
            keys = []
            for name, tensor in one.state.items():
                key = f"quantdispatch_{number}_{name}"
                layer.register_buffer(key, tensor, persistent=False)
                keys.append((name, key))
            self.kernels.append((one.impl, tuple(keys)))

    def state(self, layer: Module, number: int) -> dict[str, Tensor]:
        """The tensors of kernel ``number``, as they are now."""
        return {name: getattr(layer, key) for name, key in self.kernels[number][1]}

    def apply(self, layer: Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [..., K] to [..., N of this rank], partitions side by side."""
        outputs = [impl.apply(x, self.state(layer, number)) for number, (impl, _) in enumerate(self.kernels)]
        y = cast(Tensor, outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1))
        return y if bias is None else y + bias


def per_partition(members: Members, count: int) -> tuple[Resolution, ...]:
    """The layer that each of ``count`` partitions is, or is a part of: a projection fused in the file is one layer.

    Raises ``ConfigError`` naming the members where there is not one for each and they differ.
    """
    if len(members.layers) == count:
        members.check()
        return members.layers
    return (members.one(),) * count


def required_tensors(layer: Resolution) -> str:
    """Names of what must be stored for ``layer``, for messages."""
    assert layer.scheme_object is not None
    return ", ".join(sorted(layer.scheme_object.tensor_names()[0]))


def add_placeholders(
    layer: Module, layers: Iterable[Resolution], stem: str, make: Placeholder, load: Callable[..., Any]
) -> tuple[str, ...]:
    """A parameter from ``make`` for every tensor that any of ``layers`` stores, so that an engine's models find it by
    its name, ``stem`` before it; ``load(local name, param, tensor, ...)`` is called with each that comes. The names."""
    names: set[str] = set()
    for resolved in layers:
        assert resolved.scheme_object is not None
        names |= set().union(*resolved.scheme_object.tensor_names())
    for name in sorted(names):
        layer.register_parameter(stem + name, make(partial(load, name)))
    return tuple(stem + name for name in sorted(names))


def created(layer: Module, create: Callable[[], None]) -> Exception | None:
    """Let an engine's own class create the weights of ``layer``. What it raised, if it refused: ``layer`` has none of
    its parameters then."""
    before = set(layer._parameters)
    try:
        create()
    except Exception as refusal:  # of every kind: assertions too
        for name in set(layer._parameters) - before:
            delattr(layer, name)
        return refusal
    return None


def drop_placeholders(layer: Module, names: Iterable[str]) -> None:
    for name in names:
        delattr(layer, name)
