"""Routed experts of an engine on quantdispatch's kernels: every projection of every expert is a layer of its own, in
any mix of formats, and all of them one call where their kernel can do that. Routing stays the engine's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ...registry.errors import CheckpointError
from ...registry.resolution import Resolution
from .cutting import Cut
from .layers import Members
from .linear import Placeholder, add_placeholders, drop_placeholders, required_tensors
from .parts import Bound, Part, stack
from .report import Report

#: what engines call an expert's projections
GATE, UP, DOWN = "w1", "w3", "w2"
#: x [T, H], int64 [T, k] and fp32 [T, k] to [T, H]; an index of E, the number of experts, adds nothing
Run = Callable[[Tensor, Tensor, Tensor], Tensor]
#: [rows, 2 I] or, without a gate, [rows, I] to [rows, I]; and its name for a fused kernel, if one may know it
Activation = tuple[Callable[[Tensor], Tensor], str | None]


class PartitionedExperts:
    """What an adapter's method for experts derives from, beside the engine's own class.

    ``projections``: by shard id, every expert's layer. ``count``, ``hidden``, ``inner``: experts of this rank and
    their sizes on it. ``device``: where they run, as torch or a plan names it.
    """

    shards: tuple[str, ...]
    projections: Mapping[str, Members]
    report: Report
    count: int
    hidden: int
    inner: int
    dtype: torch.dtype
    device: Any
    parts: dict[tuple[int, str], Part]
    placeholders: tuple[str, ...] = ()

    def wait(self, layer: Module, stored: Mapping[str, Iterable[Resolution]], make: Placeholder, load: Any) -> None:
        """Be ready for tensors. ``stored``: what may be in each of the engine's two parameters, ``w13_`` and ``w2_``;
        see :func:`.linear.add_placeholders`."""
        self.parts = {}
        self.placeholders = ()
        for stem, layers in stored.items():
            self.placeholders += add_placeholders(layer, _schemes(layers), stem, make, load)

    def part(self, local: int, shard: str, resolved: Callable[[], Resolution], cut: Cut) -> Part:
        """Of the ``local``-th expert on this rank, which ``resolved()`` is asked for if there is none yet."""
        part = self.parts.get((local, shard))
        if part is None:
            size = (self.hidden, self.inner) if shard == DOWN else (self.inner, self.hidden)
            part = self.parts[local, shard] = Part(resolved(), cut, *size, self.dtype, device=self.device)
        return part

    def inner_cut(self, shard: str, rank: int) -> Cut:
        """What tensor-parallel ``rank`` has of each expert."""
        mine = (rank * self.inner, self.inner)
        return Cut(inputs=mine) if shard == DOWN else Cut(outputs=mine)

    def bind(self, layer: Module, activation: Activation) -> Run:
        """All tensors are there: choose kernels, and make one function of them."""
        bound = [[self._bound(local, shard) for shard in self.shards] for local in range(self.count)]
        for (local, shard), part in self.parts.items():
            self.report.note(part.name, part.scheme.name, bound[local][self.shards.index(shard)].kernel)
        drop_placeholders(layer, self.placeholders)
        self.placeholders = ()
        self.parts.clear()
        return runner(bound, activation)

    def _bound(self, local: int, shard: str) -> Bound:
        part = self.parts.get((local, shard))
        if part is None:
            members = self.projections[shard]
            raise CheckpointError(
                f"no tensor of expert {local} of this rank was in the weights", layer=members.name, field="weights",
                observed="none", required=required_tensors(members.first),
                remedy="config.json and the weights are of two models, or a file is missing", code="QD654",
            )  # fmt: skip
        return part.bind()


def runner(experts: Sequence[Sequence[Bound]], activation: Activation) -> Run:
    """``experts``: of each its projections, the last one writing the hidden state."""
    function, name = activation
    first = [[(one.impl, one.state) for one in own[:-1]] for own in experts]
    last = [(own[-1].impl, own[-1].state) for own in experts]
    fuse = getattr(type(last[0][0]), "fuse", None)
    if fuse is not None and name is not None and len({type(one.impl) for own in experts for one in own}) == 1:
        fused: Run | None = fuse(first, last, name)
        if fused is not None:
            return fused
    return partial(_one_by_one, [(stack(list(own[:-1])), own[-1]) for own in experts], function)


def _one_by_one(
    experts: list[tuple[list[Bound], Bound]],
    activation: Callable[[Tensor], Tensor],
    x: Tensor,
    index: Tensor,
    weights: Tensor,
) -> Tensor:
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for number in torch.unique(index).tolist():
        if number >= len(experts):
            continue
        rows, place = (index == number).nonzero(as_tuple=True)
        first, last = experts[number]
        hidden = torch.cat([one(x[rows]) for one in first], dim=-1)
        total.index_add_(0, rows, last(activation(hidden)).float() * weights[rows, place].unsqueeze(-1))
    return total.to(x.dtype)


def _schemes(layers: Iterable[Resolution]) -> list[Resolution]:
    """One layer for each way of storing: experts are many and mostly alike."""
    return list({id(layer.scheme_object): layer for layer in layers}.values())
