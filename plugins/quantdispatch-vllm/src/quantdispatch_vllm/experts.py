"""Routed experts of vLLM on quantdispatch's kernels: every projection of every expert is a layer of its own, in any mix
of formats, and all of them one call where their kernel can do that. Routing stays vLLM's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from vllm.model_executor.layers.fused_moe.activation import MoEActivation, apply_moe_activation
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase

from quantdispatch.engines import experts_op
from quantdispatch.engines.adapters.cutting import Cut
from quantdispatch.engines.adapters.layers import Members
from quantdispatch.engines.adapters.parts import Bound, Part, stack
from quantdispatch.registry.errors import CheckpointError, ConfigError

from . import dummy, policy, settings
from .report import Report

#: vLLM's names of activations that the fused call knows, to its names for them
_FUSED = {
    "silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_tanh",
    "silu_no_mul": "silu", "gelu_no_mul": "gelu", "gelu_tanh_no_mul": "gelu_tanh",
}  # fmt: skip
Run = Callable[[Tensor, Tensor, Tensor], Tensor]


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
            config.report.refused(every, refusal)
        else:
            for resolved in every.layers:
                config.report.note(resolved, f"vllm {type(method).__name__}")
            return method
    return QuantDispatchExpertsMethod(layer.moe_config, projections, device, config.report)


class QuantDispatchExpertsMethod(FusedMoEMethodBase):  # type: ignore[misc]
    """``projections``: of gate, what it gates (if anything) and down, every expert's layer."""

    def __init__(self, moe: Any, projections: list[Members], device: str, report: Report) -> None:
        super().__init__(moe)
        self.device, self.report = device, report
        self.shards = ("w1", "w3", "w2") if len(projections) == 3 else ("w1", "w2")
        self.projections = dict(zip(self.shards, projections, strict=True))
        self.parts: dict[tuple[int, str], Part] = {}
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
        self.placeholders: list[str] = []
        for stem, shards in (("w13", self.shards[:-1]), ("w2", ("w2",))):
            schemes = [r.scheme_object for shard in shards for r in self.projections[shard].layers]
            names = set().union(*(n for s in schemes if s is not None for n in s.tensor_names()))
            for name in sorted(names):
                self._add_placeholder(layer, stem, name)

    def _add_placeholder(self, layer: Module, stem: str, name: str) -> None:
        parameter = Parameter(torch.empty(0, dtype=self.dtype), requires_grad=False)
        parameter.weight_loader = partial(self._load, layer, name)  # type: ignore[attr-defined]
        layer.register_parameter(f"{stem}_{name}", parameter)
        self.placeholders.append(f"{stem}_{name}")

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
        part = self.parts.get((local, shard))
        if part is None:
            layers = self.projections[shard].layers
            # a redundant expert is another copy of one that the checkpoint has
            resolved = layers[expert % len(layers)]
            part = Part(resolved, self._cut(shard), *self._size(shard), self.dtype, device=self.device)
            self.parts[local, shard] = part
        return part

    def _cut(self, shard: str) -> Cut:
        if self.moe.tp_size == 1:
            return Cut()
        mine = (self.moe.tp_rank * self.inner, self.inner)
        return Cut(inputs=mine) if shard == "w2" else Cut(outputs=mine)

    def _size(self, shard: str) -> tuple[int, int]:
        return (self.hidden, self.inner) if shard == "w2" else (self.inner, self.hidden)

    def process_weights_after_loading(self, layer: Any) -> None:
        if not self.placeholders:
            return
        if not self.parts and dummy.wanted():
            for local in range(self.count):
                for shard in self.shards:
                    dummy.fill(self._part(shard, local, local))
        bound = [[self._bind(local, shard) for shard in self.shards] for local in range(self.count)]
        for part, one in (
            (self.parts[e, s], bound[e][i]) for e in range(self.count) for i, s in enumerate(self.shards)
        ):
            self.report.kernels[part.name] = (part.scheme.name, one.kernel)
        for name in self.placeholders:
            delattr(layer, name)
        self.placeholders = []
        self._run = runner(bound, layer.activation, self.hidden)
        self._number = experts_op.enter(self)
        self.parts.clear()
        self.report.done(self, self.moe.tp_rank)

    def _bind(self, local: int, shard: str) -> Bound:
        part = self.parts.get((local, shard))
        if part is None:
            raise CheckpointError(
                f"no tensor of expert {local} was in the weights", layer=self.projections[shard].name,
                field="weights", observed="none", required=", ".join(sorted(self.projections[shard].tensors)),
                remedy="config.json and the weights are of two models, or a file is missing", code="QD654",
            )  # fmt: skip
        return part.bind()

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


def runner(experts: list[list[Bound]], activation: MoEActivation, hidden: int) -> Run:
    """x [T, H], int64 [T, k] and fp32 [T, k] to [T, H]. ``experts``: of each its projections, the last one down."""
    first = [[(b.impl, b.state) for b in own[:-1]] for own in experts]
    last = [(own[-1].impl, own[-1].state) for own in experts]
    fuse = getattr(type(last[0][0]), "fuse", None)
    kinds = {type(b.impl) for own in experts for b in own}
    if fuse is not None and len(kinds) == 1 and activation.value in _FUSED:
        fused: Run | None = fuse(first, last, _FUSED[activation.value])
        if fused is not None:
            return fused
    if activation.value.startswith("swiglu") and activation.is_gated and "uninterleave" not in activation.value:
        raise ConfigError(
            f"experts with activation {activation.value} are stored interleaved, which quantdispatch does not compute",
            field="hidden_act", observed=activation.value, required="gate and up projection apart",
            remedy=f"{settings.ENABLED}=0 leaves the model to vLLM", code="QD516",
        )  # fmt: skip
    return partial(_one_by_one, [(stack(own[:-1]), own[-1]) for own in experts], activation)


def _one_by_one(
    experts: list[tuple[list[Bound], Bound]], activation: MoEActivation, x: Tensor, index: Tensor, weights: Tensor
) -> Tensor:
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for number in index.unique().tolist():
        if number >= len(experts):
            continue
        rows, place = (index == number).nonzero(as_tuple=True)
        first, last = experts[number]
        hidden = torch.cat([one(x[rows]) for one in first], dim=-1)
        width = hidden.shape[-1] // 2 if activation.is_gated else hidden.shape[-1]
        inner = hidden.new_empty(hidden.shape[0], width)
        apply_moe_activation(activation, inner, hidden)
        total.index_add_(0, rows, last(inner).float() * weights[rows, place].unsqueeze(-1))
    return total.to(x.dtype)
