"""An engine's modules and methods as adapters see them, and nothing of an engine."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from quantdispatch.engines.adapters.layers import LayerTable, Members
from quantdispatch.engines.adapters.linear import PartitionedLinear, per_partition
from quantdispatch.engines.adapters.report import Report
from quantdispatch.engines.adapters.sharding import Partition, Shards

LOG = logging.getLogger("stand_in.plugins")


def placeholder(load: Any) -> Parameter:
    parameter = Parameter(torch.empty(0), requires_grad=False)
    parameter.weight_loader = load  # type: ignore[attr-defined]
    return parameter


def load(module: Module, tensors: Mapping[str, Tensor], *shard: Any, stem: str = "", **more: Any) -> None:
    """As models do: parameters are found by name, and asked for their loader."""
    parameters = dict(module.named_parameters())
    for name, tensor in tensors.items():
        parameter = parameters[stem + name]
        parameter.weight_loader(parameter, tensor, *shard, **more)  # type: ignore[attr-defined]


def waiting(method: Any, block: Any, names: list[str], sizes: list[int], k: int, kind: str = "linear") -> Module:
    """``method``, of a class of adapters, ready for the layers ``names`` with ``sizes`` outputs; the module."""
    table, module = LayerTable(block), Module()
    members = Members("m.fused", tuple(table.layer(name, kind) for name in names))
    method.members, method.report = members, Report(LOG)
    method.shards = Shards(tuple(Partition(size, 0, size) for size in sizes), None, k)
    method.dtype, method.device = torch.float32, "cpu"
    method.layers = per_partition(members, len(sizes))
    method.wait(module, placeholder)
    return module


class Linear(PartitionedLinear):
    """As an adapter's, without an engine's class beside it."""
