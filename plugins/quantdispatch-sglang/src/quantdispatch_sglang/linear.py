"""Linear modules of SGLang on quantdispatch's kernels: partitions loaded one by one, computed together if possible.

A module's parameters are empty while weights are loaded: their loaders hand each stored tensor to the part that it
belongs to, which keeps what this rank needs of it. Members of one module may so be quantized each in its own way. What
kernels compute with are buffers of the module.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, cast

import torch
from sglang.srt.layers.parameter import BasevLLMParameter
from sglang.srt.layers.quantization.base_config import LinearMethodBase
from torch import Tensor
from torch.nn import Module

from quantdispatch.engines.adapters.layers import Members
from quantdispatch.engines.adapters.parts import Bound, Part, stack
from quantdispatch.registry.errors import CheckpointError
from quantdispatch.registry.resolution import Resolution

from .report import Report
from .sharding import Shards


class QuantDispatchLinearMethod(LinearMethodBase):  # type: ignore[misc]
    """``members``: what the module is made of. ``report``: told which kernel each of them got."""

    part_class: type[Part] = Part

    def __init__(self, quant_config: Any, members: Members, report: Report) -> None:
        # SGLang asks methods for their config by both names
        self.quant_config = self.quantization_config = quant_config
        self.members, self.report = members, report

    # -- loading

    def create_weights(
        self,
        layer: Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        self.shards = Shards.of(layer, output_partition_sizes, input_size, input_size_per_partition)
        self.dtype = params_dtype
        self.device = torch.empty(0).device  # SGLang builds models where they are to run
        self.layers = _per_partition(self.members, len(self.shards.partitions))
        self._wait(layer)

    def _wait(self, layer: Module) -> None:
        self.parts: dict[int, Part] = {}
        self.placeholders = add_placeholders(layer, self.layers, "", self._load)

    def _load(self, name: str, param: Any, loaded_weight: Tensor, shard_id: Any = None) -> None:
        held = self.shards.of_shard(shard_id, self.members.name)
        for index in held:
            part = self.parts.get(index)
            if part is None:
                part = self.parts[index] = self._part(index, held)
            if name in part.names:
                part.take(name, loaded_weight.to(self.device))

    def _part(self, index: int, held: Sequence[int]) -> Part:
        partition = self.shards.partitions[index]
        where = self.shards.cut(index, held)
        return self.part_class(
            self.layers[index], where, partition.count, self.shards.k, self.dtype, device=str(self.device)
        )

    def process_weights_after_loading(self, layer: Module) -> None:
        if not self.placeholders:  # done before
            return
        bound = [self._bind(index) for index in range(len(self.shards.partitions))]
        drop_placeholders(layer, self.placeholders)
        self.placeholders = ()
        for resolved, one in zip(self.layers, bound, strict=True):
            self.report.note(resolved.name, resolved.scheme, one.kernel)
        self._attach(layer, stack(bound))
        self.parts.clear()

    def restore_weights_before_loading(self, layer: Module) -> None:
        """New weights are coming for a module that computes already."""
        if not self.placeholders:
            self._wait(layer)

    def _bind(self, index: int) -> Bound:
        part = self.parts.get(index)
        if part is None:
            raise CheckpointError(
                "no tensor of this layer was in the weights", layer=self.layers[index].name, field="weights",
                observed="none", required=", ".join(sorted(self.layers[index].tensors)),
                remedy="config.json and the weights are of two models, or a file is missing", code="QD654",
            )  # fmt: skip
        return part.bind()

    def _attach(self, layer: Module, bound: Sequence[Bound]) -> None:
        """Keep the kernels, and their tensors as buffers of the module."""
        self.kernels = []
        for number, one in enumerate(bound):
            keys = []
            for name, tensor in one.state.items():
                key = f"quantdispatch_{number}_{name}"
                layer.register_buffer(key, tensor, persistent=False)
                keys.append((name, key))
            self.kernels.append((one.impl, tuple(keys)))

    # -- running

    def apply(self, layer: Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        outputs = [impl.apply(x, {name: getattr(layer, key) for name, key in keys}) for impl, keys in self.kernels]
        y = cast(Tensor, outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1))
        return y if bias is None else y + bias


def add_placeholders(layer: Module, layers: Iterable[Resolution], stem: str, load: Any) -> tuple[str, ...]:
    """One empty parameter for every tensor that any of ``layers`` stores, so that SGLang's models find it by its name;
    ``load(local name, param, tensor, ...)`` is called with each that comes."""
    names: set[str] = set()
    for resolved in layers:
        assert resolved.scheme_object is not None
        names |= set().union(*resolved.scheme_object.tensor_names())
    for name in sorted(names):
        parameter = BasevLLMParameter(data=torch.empty(0), weight_loader=partial(load, name))
        layer.register_parameter(stem + name, parameter)
    return tuple(stem + name for name in sorted(names))


def drop_placeholders(layer: Module, names: Iterable[str]) -> None:
    for name in names:
        delattr(layer, name)


def _per_partition(members: Members, count: int) -> tuple[Resolution, ...]:
    """The layer that each partition is, or is a part of: a projection fused in the file is one layer.

    Raises ``ConfigError`` naming the members where the module has not one partition for each and they differ.
    """
    if len(members.layers) == count:
        members.check()
        return members.layers
    return (members.one(),) * count
