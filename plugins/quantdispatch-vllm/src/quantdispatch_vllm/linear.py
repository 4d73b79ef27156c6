"""Linear modules of vLLM on quantdispatch's kernels, and on vLLM's with ours behind them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Module, Parameter
from vllm.model_executor.layers.linear import LinearMethodBase, register_weight_loader_v2_supported_method
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsLinearMethod

from quantdispatch.engines.adapters.layers import Members
from quantdispatch.engines.adapters.linear import PartitionedLinear, created, per_partition

from . import dummy
from .report import Report
from .sharding import Shards


class QuantDispatchLinearMethod(PartitionedLinear, LinearMethodBase):
    """``members``: what the module is made of. ``report``: told which kernel each of them got."""

    report: Report

    def __init__(self, members: Members, device: str, report: Report) -> None:
        self.members, self.device, self.report = members, device, report

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
        self.layers = per_partition(self.members, len(self.shards.partitions))
        self.report.expect(self)
        self.wait(layer, lambda load: placeholder(load, params_dtype))

    def process_weights_after_loading(self, layer: Module) -> None:
        if not self.placeholders:  # done before
            return
        if not self.parts and dummy.wanted():
            for index in range(len(self.shards.partitions)):
                self.parts[index] = dummy.fill(self.part(index, (index,)))
        self.bind(layer)
        self.report.done(self, getattr(layer, "tp_rank", 0))


def placeholder(load: Any, dtype: torch.dtype) -> Parameter:
    """What vLLM's models ask for its loader."""
    parameter = Parameter(torch.empty(0, dtype=dtype), requires_grad=False)
    parameter.weight_loader = load  # type: ignore[attr-defined]
    return parameter


@register_weight_loader_v2_supported_method
class VllmFirstLinearMethod(CompressedTensorsLinearMethod):
    """vLLM's own class for the scheme, and quantdispatch's kernels where vLLM has none for this device or shape.

    vLLM finds that out while it creates weights, so that it is asked then.
    """

    def __init__(self, quantization_config: Any, ours: QuantDispatchLinearMethod) -> None:
        super().__init__(quantization_config)
        self.ours = ours

    def create_weights(self, layer: Module, *args: Any, **kwargs: Any) -> None:
        create = super().create_weights
        refusal = created(layer, lambda: create(layer, *args, **kwargs))
        if refusal is not None:
            layer.scheme = None
            layer.quant_method = self.ours
            self.ours.report.unable(self.ours.members, refusal)
            self.ours.create_weights(layer, *args, **kwargs)
            return
        for resolved in self.ours.members.layers:
            self.ours.report.note(resolved.name, resolved.scheme, f"vllm {type(layer.scheme).__name__}")
        self.ours.report.expect(self)

    def process_weights_after_loading(self, layer: Module) -> None:
        super().process_weights_after_loading(layer)
        self.ours.report.done(self, getattr(layer, "tp_rank", 0))
