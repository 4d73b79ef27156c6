"""Linear modules of SGLang on quantdispatch's kernels."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.parameter import BasevLLMParameter
from sglang.srt.layers.quantization.base_config import LinearMethodBase
from torch.nn import Module

from quantdispatch.engines.adapters.layers import Members
from quantdispatch.engines.adapters.linear import PartitionedLinear, created, per_partition
from quantdispatch.engines.adapters.report import Report

from . import limits
from .sharding import Shards


class QuantDispatchLinearMethod(PartitionedLinear, LinearMethodBase):  # type: ignore[misc]
    """``members``: what the module is made of. ``report``: told which kernel each of them got."""

    def __init__(self, quant_config: Any, members: Members, report: Report) -> None:
        # SGLang asks methods for their config by both names
        self.quant_config = self.quantization_config = quant_config
        self.members, self.report = members, report

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
        self.layers = per_partition(self.members, len(self.shards.partitions))
        self.wait(layer, placeholder)

    def process_weights_after_loading(self, layer: Module) -> None:
        if self.placeholders:  # else it was done before
            self.bind(layer)

    def restore_weights_before_loading(self, layer: Module) -> None:
        """New weights are coming for a module that computes already."""
        if not self.placeholders:
            self.wait(layer, placeholder)


def placeholder(load: Any) -> BasevLLMParameter:
    """What SGLang's models ask for its loader."""
    return BasevLLMParameter(data=torch.empty(0), weight_loader=load)


def first(theirs: Any, name: str, ours: QuantDispatchLinearMethod) -> None:
    """Let SGLang's method ``theirs``, for its scheme class ``name``, give a module to ``ours`` whose shape its kernel
    cannot take. Shapes are known when weights are created. The method's class stays: SGLang goes by its name."""
    create = theirs.create_weights

    def create_weights(
        layer: Any, input_size_per_partition: int, output_partition_sizes: list[int], *args: Any, **more: Any
    ) -> None:
        given = (layer, input_size_per_partition, output_partition_sizes, *args)
        weights = ours.members.first.weights
        assert weights is not None
        reason = limits.of_linear(name, weights, output_partition_sizes, input_size_per_partition)
        if reason is None:
            refusal = created(layer, lambda: create(*given, **more))
            reason = None if refusal is None else f"{type(refusal).__name__}: {refusal}".removesuffix(": ")
        if reason is not None:
            ours.report.refused(f"SGLang's {name}", reason)
            layer.scheme, layer.quant_method = None, ours
            ours.create_weights(*given, **more)

    theirs.create_weights = create_weights
