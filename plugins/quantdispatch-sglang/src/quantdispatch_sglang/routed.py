"""Who computes a module of routed experts, and which layers of the checkpoint it is made of."""

from __future__ import annotations

from typing import Any

from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsFusedMoEMethod

from quantdispatch.engines.adapters.layers import Members
from quantdispatch.registry.resolution import Resolution

from . import device, limits, policy
from .experts import QuantDispatchExpertsMethod, location_of
from .marlin import ZeroPointMarlinMoE, suits

#: names in checkpoints of gate, what it gates, and down. SGLang does not tell which a model has
_TRIPLES = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
_SHARED = ("shared_experts", "shared_expert")


def experts_method(config: Any, layer: Any, prefix: str) -> Any:
    """``None`` where all experts are left dense, which SGLang has its own method for."""
    from .config import _refuse_transforms

    projections = projections_of(config, layer, prefix)
    every = Members(prefix, tuple(resolved for module in projections for resolved in module.layers))
    _refuse_transforms(every)
    choice, wanted = policy.choose(every, config.table.environment, device.current_settings())
    if choice == policy.NOTHING:
        config.report.note(prefix, every.first.scheme, "sglang")
        return None
    activation = layer.moe_runner_config.activation if layer.moe_runner_config.is_gated else None
    hidden, inner = layer.hidden_size, layer.intermediate_size_per_partition
    if choice == policy.THEIRS and wanted is not None:
        assert every.first.weights is not None
        limit = limits.of_experts(wanted, every.first.weights, hidden, inner, activation)
        if limit is not None:
            config.report.refused(f"SGLang's {wanted}", limit)
        method = None if limit is not None else config.single.method(layer, prefix, every.first, wanted)
        if method is not None:
            note(config, every, f"sglang {wanted}")
            return method
    every.check()
    shared = shared_of(config, layer, prefix, projections)
    marlin = config.table.environment.device == "cuda" and not shared and every.alike
    if marlin and suits(every.first, hidden, inner, activation):
        single = config.single._config(every.first, "Linear")
        layer.scheme = ZeroPointMarlinMoE(single, weight_quant=single.target_scheme_map["Linear"]["weights"])
        note(config, every, "sglang marlin, with zero points")
        return CompressedTensorsFusedMoEMethod(single)
    return QuantDispatchExpertsMethod(config, projections, config.report, shared)


def note(config: Any, every: Members, kernel: str) -> None:
    for resolved in every.layers:
        config.report.note(resolved.name, resolved.scheme, kernel)


def projections_of(config: Any, layer: Any, prefix: str) -> list[Members]:
    """Gate, up and down of every expert, under the names that the checkpoint, or else the config, has for them."""
    triple = next((names for names in _TRIPLES if _named(config, prefix, names)), _TRIPLES[0])
    names = triple if layer.moe_runner_config.is_gated else (triple[0], triple[2])
    if not layer.moe_runner_config.is_gated and _TRIPLES[0] is triple:
        names = ("up_proj", "down_proj")
    location = location_of(layer)
    count = layer.num_experts - layer.num_fused_shared_experts
    if location is not None:  # experts that are there twice are one in the checkpoint
        count = location.num_logical_experts
    found: list[Members] = config.table.experts(prefix, names, count)
    return found


def _named(config: Any, prefix: str, triple: tuple[str, ...]) -> bool:
    """Does the checkpoint have such names, or does an entry of the config that is no class speak of them?"""
    table = config.table
    if table.stored:
        return any(f"{prefix}.0.{name}" in table.stored for name in triple)
    layers = [table.layer(f"{prefix}.0.{name}", "moe") for name in triple]
    return any(_by_name(resolved) for resolved in layers)


def _by_name(resolved: Resolution) -> bool:
    entry = resolved.target or resolved.ignored_by or ""
    return entry.startswith("re:") or "." in entry


def shared_of(config: Any, layer: Any, prefix: str, projections: list[Members]) -> list[Resolution]:
    """Of the shared expert, where SGLang keeps it beside the routed ones."""
    if not layer.num_fused_shared_experts:
        return []
    parent = prefix.rpartition(".")[0]
    stored = config.table.stored
    name = next((n for n in _SHARED if any(key.startswith(f"{parent}.{n}.") for key in stored)), _SHARED[0])
    return [config.table.layer(f"{parent}.{name}.{module.name.rpartition('.')[2]}") for module in projections]
