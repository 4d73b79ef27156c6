"""Routed experts of SGLang on quantdispatch's kernels. Routing stays SGLang's.

SGLang's loader finds out which of the experts this rank has, and where; from there the tensors come here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from sglang.srt.eplb.expert_location import get_global_expert_location_metadata
from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput
from sglang.srt.layers.quantization.base_config import FusedMoEMethodBase
from torch import Tensor
from torch.nn import Module

from quantdispatch.engines.adapters.cutting import Cut
from quantdispatch.engines.adapters.experts import DOWN, GATE, UP, PartitionedExperts, Run
from quantdispatch.engines.adapters.layers import Members
from quantdispatch.engines.adapters.report import Report
from quantdispatch.registry.errors import ConfigError
from quantdispatch.registry.resolution import Resolution

from . import device
from .activation import gated
from .linear import placeholder


class QuantDispatchExpertsMethod(PartitionedExperts, FusedMoEMethodBase):  # type: ignore[misc]
    """``projections``: of gate, what it gates (if anything) and down, every expert's layer. ``shared``: the same of
    the shared expert, where SGLang keeps it among the routed ones."""

    def __init__(
        self, quant_config: Any, projections: Sequence[Members], report: Report, shared: Sequence[Resolution] = ()
    ) -> None:
        self.quant_config = self.quantization_config = quant_config
        self.report = report
        self.shards = (GATE, UP, DOWN) if len(projections) == 3 else (GATE, DOWN)
        self.projections = dict(zip(self.shards, projections, strict=True))
        self.shared = dict(zip(self.shards, shared, strict=True)) if shared else {}
        self._run: Run | None = None

    # -- loading

    def create_weights(
        self,
        layer: Any,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        self.count, self.hidden, self.inner = num_experts, hidden_size, intermediate_size_per_partition
        self.dtype, self.device = params_dtype, torch.empty(0).device
        self.prefix = layer.layer_name
        self._check(extra_weight_attrs)
        self._entry = extra_weight_attrs.get("weight_loader")
        layer._weight_loader_impl = partial(self._load, layer)
        self._expect(layer)

    def _expect(self, layer: Module) -> None:
        every = {
            shard: [*self.projections[shard].layers, *([self.shared[shard]] if self.shared else [])]
            for shard in self.shards
        }
        first = [resolved for shard in self.shards[:-1] for resolved in every[shard]]
        self.wait(layer, {"w13_": first, "w2_": every[DOWN]}, placeholder, self._enter)

    def _enter(self, name: str, param: Any, *args: Any, **kwargs: Any) -> None:
        """SGLang's own loader goes first: it knows where experts are. It comes back with :meth:`_load`."""
        if self._entry is None:
            raise ConfigError(
                "SGLang gave no loader for these experts", layer=self.prefix, field="weight_loader", observed="none",
                required="a function", code="QD516",
            )  # fmt: skip
        param.quantdispatch_name = name
        self._entry(param, *args, **kwargs)

    def _load(
        self, layer: Any, *, param: Any, loaded_weight: Tensor, weight_name: str, shard_id: str, expert_id: int
    ) -> None:
        """``expert_id``: of the expert among this rank's."""
        name = param.quantdispatch_name
        whole = layer.moe_tp_size == 1 or layer.use_presharded_weights
        cut = Cut() if whole else self.inner_cut(shard_id, layer.moe_tp_rank)
        part = self.part(expert_id, shard_id, lambda: self._layer(layer, shard_id, expert_id), cut)
        if name in part.names:
            part.take(name, loaded_weight)

    def _layer(self, layer: Any, shard: str, local: int) -> Resolution:
        """Which layer of the checkpoint it is that is here: experts may be anywhere, and in several places."""
        routed = layer._num_local_routed
        if local >= routed:
            return self.shared[shard]
        number, location = layer._expert_storage_rank * routed + local, location_of(layer)
        if location is not None:
            number = int(location.physical_to_logical_map_cpu[layer.layer_id, number])
        return self.projections[shard].layers[number]

    def process_weights_after_loading(self, layer: Any) -> None:
        if self.placeholders:  # else it was done before
            self._run = self.bind(layer, gated(self.moe_runner_config))

    def restore_weights_before_loading(self, layer: Any) -> None:
        """New weights are coming for a module that computes already."""
        if not self.placeholders:
            self._expect(layer)

    # -- running

    def create_moe_runner(self, layer: Module, moe_runner_config: Any) -> None:
        """There is none: SGLang hands over tokens as they are, and their experts by their numbers on this rank."""
        self.moe_runner_config = moe_runner_config
        gated(moe_runner_config)  # what cannot be computed is told before weights are loaded

    def apply(self, layer: Any, dispatch_output: Any) -> Any:
        assert self._run is not None
        x = dispatch_output.hidden_states
        weights, index, _ = dispatch_output.topk_output
        config = self.moe_runner_config
        weights = weights.to(torch.float32)
        if config.apply_router_weight_on_input:
            x, weights = x * weights.to(x.dtype), torch.ones_like(weights)
        index = index.to(torch.int64)
        index = torch.where(index < 0, self.count, index)  # an expert that lives elsewhere adds nothing
        y = self._run(x, index, weights)
        # elsewhere it is the model that applies the factor
        if config.routed_scaling_factor is not None and x.is_cuda:
            y = y * config.routed_scaling_factor
        return StandardCombineInput(hidden_states=y)

    def _check(self, attributes: dict[str, Any]) -> None:
        if attributes.get("with_bias"):
            raise ConfigError(
                "experts with a bias are not computed by quantdispatch in SGLang", layer=self.prefix,
                field="with_bias", observed=True, required=False,
                remedy="leave the model to SGLang: QUANTDISPATCH_SGLANG=0", code="QD516",
            )  # fmt: skip
        if device.experts_move():  # SGLang would change its tables, and find no parameters of ours to move
            raise ConfigError(
                "experts that quantdispatch computes cannot be moved between ranks while SGLang serves",
                layer=self.prefix, field="enable_eplb", observed=True, required=False,
                remedy="serve without --enable-eplb: where experts are and which are there twice can be set beforehand",
                code="QD516",
            )  # fmt: skip


def location_of(layer: Any) -> Any | None:
    """SGLang's tables of where experts are, of which some may be there twice; ``None`` where they are in order."""
    return get_global_expert_location_metadata() if layer.uses_expert_location else None
