"""Linear modules of vLLM on quantdispatch's kernels: each partition loaded by itself, computed together where possible.

A module's parameters are empty while weights are loaded: their loaders hand each stored tensor to the part that it
belongs to. What kernels compute with are buffers of the module, so that compiled graphs take them as inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from vllm.model_executor.layers.linear import LinearMethodBase, register_weight_loader_v2_supported_method
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsLinearMethod

from quantdispatch.engines.adapters.layers import Members
from quantdispatch.engines.adapters.parts import Bound, Part, stack
from quantdispatch.registry.errors import CheckpointError
from quantdispatch.registry.resolution import Resolution

from . import dummy
from .report import Report
from .sharding import Shards


class QuantDispatchLinearMethod(LinearMethodBase):
    """``members``: what the module is made of. ``report``: told which kernel each of them got."""

    part_class: type[Part] = Part

    def __init__(self, members: Members, device: str, report: Report) -> None:
        self.members, self.device, self.report = members, device, report

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
        shards = Shards.of(layer, output_partition_sizes, input_size, input_size_per_partition)
        self.shards, self.dtype = shards, params_dtype
        self.layers = _per_partition(self.members, len(shards.partitions))
        self.parts: dict[int, Part] = {}
        self.report.expect(self)
        self.placeholders: tuple[str, ...] = ()
        names: set[str] = set()
        for resolved in self.layers:
            assert resolved.scheme_object is not None
            names |= set().union(*resolved.scheme_object.tensor_names())
        for name in sorted(names):
            self._add_placeholder(layer, name)

    def _add_placeholder(self, layer: Module, name: str) -> None:
        parameter = Parameter(torch.empty(0, dtype=self.dtype), requires_grad=False)
        parameter.weight_loader = partial(self._load, name)  # type: ignore[attr-defined]
        layer.register_parameter(name, parameter)
        self.placeholders = (*self.placeholders, name)

    def _load(self, name: str, param: Parameter, loaded_weight: Tensor, shard_id: Any = None) -> None:
        held = self.shards.of_shard(shard_id, self.members.name)
        for index in held:
            part = self.parts.get(index)
            if part is None:
                part = self.parts[index] = self._part(index, held)
            if name in part.names:
                part.take(name, loaded_weight)

    def _part(self, index: int, held: Sequence[int]) -> Part:
        partition = self.shards.partitions[index]
        where = self.shards.cut(index, held)
        return self.part_class(
            self.layers[index], where, partition.count, self.shards.k, self.dtype, device=self.device
        )

    def process_weights_after_loading(self, layer: Module) -> None:
        if not self.placeholders:  # done before
            return
        if not self.parts and dummy.wanted():
            for index in range(len(self.shards.partitions)):
                self.parts[index] = dummy.fill(self._part(index, (index,)))
        bound = [self._bind(index) for index in range(len(self.shards.partitions))]
        for name in self.placeholders:
            delattr(layer, name)
        self.placeholders = ()
        for resolved, one in zip(self.layers, bound, strict=True):
            self.report.note(resolved, one.kernel)
        self.attach(layer, stack(bound))
        self.parts.clear()
        self.report.done(self, getattr(layer, "tp_rank", 0))

    def _bind(self, index: int) -> Bound:
        part = self.parts.get(index)
        if part is None:
            raise CheckpointError(
                "no tensor of this layer was in the weights", layer=self.layers[index].name, field="weights",
                observed="none", required=", ".join(sorted(self.layers[index].tensors)),
                remedy="config.json and the weights are of two models, or a file is missing", code="QD654",
            )  # fmt: skip
        return part.bind()

    def attach(self, layer: Module, bound: Sequence[Bound]) -> None:
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
        y = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
        return y if bias is None else y + bias


@register_weight_loader_v2_supported_method
class VllmFirstLinearMethod(CompressedTensorsLinearMethod):
    """vLLM's own class for the scheme, and quantdispatch's kernels where vLLM has none for this device or shape.

    vLLM finds that out while it creates weights, so that it is asked then.
    """

    def __init__(self, quantization_config: Any, ours: QuantDispatchLinearMethod) -> None:
        super().__init__(quantization_config)
        self.ours = ours

    def create_weights(self, layer: Module, *args: Any, **kwargs: Any) -> None:
        before = set(layer._parameters)
        try:
            super().create_weights(layer, *args, **kwargs)
        except (ValueError, NotImplementedError, AssertionError, RuntimeError, AttributeError, ImportError) as refusal:
            for name in set(layer._parameters) - before:
                delattr(layer, name)
            layer.scheme = None
            layer.quant_method = self.ours
            self.ours.report.refused(self.ours.members, refusal)
            self.ours.create_weights(layer, *args, **kwargs)
            return
        for resolved in self.ours.members.layers:
            self.ours.report.note(resolved, f"vllm {type(layer.scheme).__name__}")
        self.ours.report.expect(self)

    def process_weights_after_loading(self, layer: Module) -> None:
        super().process_weights_after_loading(layer)
        self.ours.report.done(self, getattr(layer, "tp_rank", 0))


def _per_partition(members: Members, count: int) -> tuple[Resolution, ...]:
    """The layer that each partition is, or is a part of: a projection fused in the file is one layer."""
    if len(members.layers) == count:
        members.check()
        return members.layers
    return (members.one(),) * count
