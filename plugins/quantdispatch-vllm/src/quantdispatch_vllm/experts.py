"""Routed experts of vLLM on quantdispatch's kernels. Routing stays vLLM's."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from vllm.model_executor.layers.fused_moe.activation import MoEActivation, apply_moe_activation
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase

from quantdispatch.engines import experts_op
from quantdispatch.engines.adapters.cutting import Cut
from quantdispatch.engines.adapters.experts import DOWN, GATE, UP, Activation, PartitionedExperts, Run
from quantdispatch.engines.adapters.layers import Members
from quantdispatch.engines.adapters.parts import Part
from quantdispatch.registry.errors import ConfigError

from . import dummy, policy, settings
from .linear import placeholder
from .report import Report

#: vLLM's names of activations that the fused call knows, to its names for them
_FUSED = {
    "silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_tanh",
    "silu_no_mul": "silu", "gelu_no_mul": "gelu", "gelu_tanh_no_mul": "gelu_tanh",
}  # fmt: skip


def experts_method(config: Any, layer: Any, prefix: str) -> Any:
    """The method of a module of routed experts; ``None`` where they are left dense."""
    from .config import current_device

    names = [layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name, layer.ckpt_down_proj_name]
    count = layer.moe_config.num_logical_experts
    projections = config.table.experts(prefix, [name for name in names if name is not None], count)
    every = Members(prefix, tuple(resolved for module in projections for resolved in module.layers))
    device = current_device()
    choice = policy.choose(every, device, settings.order())
    if choice == "dense":
        return None
    if choice == "theirs":
        try:
            method = super(type(config), config).get_quant_method(layer, prefix)
        except Exception as refusal:  # vLLM has no kernel, or asserts it has one
            config.report.unable(every, refusal)
        else:
            for resolved in every.layers:
                config.report.note(resolved.name, resolved.scheme, f"vllm {type(method).__name__}")
            return method
    return QuantDispatchExpertsMethod(layer.moe_config, projections, device, config.report)


class QuantDispatchExpertsMethod(PartitionedExperts, FusedMoEMethodBase):  # type: ignore[misc]
    """``projections``: of gate, what it gates (if anything) and down, every expert's layer."""

    report: Report

    def __init__(self, moe: Any, projections: list[Members], device: str, report: Report) -> None:
        super().__init__(moe)
        self.device, self.report = device, report
        self.shards = (GATE, UP, DOWN) if len(projections) == 3 else (GATE, DOWN)
        self.projections = dict(zip(self.shards, projections, strict=True))
        self._run: Run | None = None

    def get_fused_moe_quant_config(self, layer: Any) -> None:
        return None

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
        self.dtype = params_dtype
        self.report.expect(self)
        first = [r for shard in self.shards[:-1] for r in self.projections[shard].layers]
        stored = {"w13_": first, "w2_": self.projections[DOWN].layers}
        self.wait(layer, stored, lambda load: placeholder(load, params_dtype), partial(self._load, layer))

    def _load(
        self,
        layer: Any,
        name: str,
        param: Parameter,
        loaded_weight: Tensor,
        weight_name: str,
        shard_id: str,
        expert_id: int,
        return_success: bool = False,
    ) -> bool | None:
        local = layer._map_global_expert_id_to_local_expert_id(expert_id)
        if local == -1:
            return False if return_success else None
        part = self._part(shard_id, local, expert_id)
        if name in part.names:
            part.take(name, loaded_weight)
        return True if return_success else None

    def _part(self, shard: str, local: int, expert: int) -> Part:
        layers = self.projections[shard].layers
        cut = Cut() if self.moe.tp_size == 1 else self.inner_cut(shard, self.moe.tp_rank)
        # a redundant expert is another copy of one that the checkpoint has
        return self.part(local, shard, lambda: layers[expert % len(layers)], cut)

    def process_weights_after_loading(self, layer: Module) -> None:
        if not self.placeholders:
            return
        if not self.parts and dummy.wanted():
            for local in range(self.count):
                for shard in self.shards:
                    dummy.fill(self._part(shard, local, local))
        self._run = self.bind(layer, activation_of(layer.activation))
        self._number = experts_op.enter(self)
        self.report.done(self, self.moe.tp_rank)

    # -- running

    def apply(
        self,
        layer: Any,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        shared_experts: Any = None,
        shared_experts_input: Tensor | None = None,
    ) -> Tensor:
        if layer.apply_router_weight_on_input:
            x, topk_weights = x * topk_weights.to(x.dtype), torch.ones_like(topk_weights)
        index = topk_ids.to(torch.int64)
        if layer.expert_map is not None:
            local = layer.expert_map[index].to(torch.int64)
            index = torch.where(local < 0, self.count, local)  # one that lives elsewhere adds nothing
        result: Tensor = experts_op.call(x, index, topk_weights.to(torch.float32), self._number)
        return result

    def compute(self, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        """What the operator runs."""
        assert self._run is not None
        return self._run(x, index, weights)


def activation_of(activation: MoEActivation) -> Activation:
    """Raises ``ConfigError`` for one whose projections are stored interleaved."""
    name = _FUSED.get(activation.value)
    if activation.value.startswith("swiglu") and activation.is_gated and "uninterleave" not in activation.value:
        raise ConfigError(
            f"experts with activation {activation.value} are stored interleaved, which quantdispatch does not compute",
            field="hidden_act", observed=activation.value, required="gate and up projection apart",
            remedy=f"{settings.ENABLED}=0 leaves the model to vLLM", code="QD516",
        )  # fmt: skip
    return partial(_activate, activation), name


def _activate(activation: MoEActivation, hidden: Tensor) -> Tensor:
    width = hidden.shape[-1] // 2 if activation.is_gated else hidden.shape[-1]
    inner = hidden.new_empty(hidden.shape[0], width)
    apply_moe_activation(activation, inner, hidden)
    return inner
