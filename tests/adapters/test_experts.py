"""Routed experts of an engine, loaded tensor by tensor and computed by our kernels, without an engine."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_stand_ins import LOG, load, placeholder
from stored_layers import Stored, config, stored, weights
from torch.nn import Module

from quantdispatch.engines.adapters.cutting import Cut
from quantdispatch.engines.adapters.experts import DOWN, GATE, UP, PartitionedExperts
from quantdispatch.engines.adapters.layers import LayerTable
from quantdispatch.engines.adapters.report import Report
from quantdispatch.registry.errors import CheckpointError

E, H, INNER, PREFIX = 3, 64, 64, "m.experts"
NAMES = {GATE: "gate_proj", UP: "up_proj", DOWN: "down_proj"}
ALIKE = config((["Linear"], weights(4, 32), None, "pack-quantized"))
MIXED = config(
    ([f"re:{PREFIX}.0.*"], weights(8, "channel"), None, "pack-quantized"),
    ([f"re:{PREFIX}.1.*"], weights(4, 32), None, "pack-quantized"),
)


class Experts(PartitionedExperts):
    """As an adapter's, without an engine's class beside it. ``inner``: of each expert, on this rank."""

    def __init__(self, block: Any, inner: int = INNER, rank: int = 0) -> None:
        self.shards, self.report, self.rank = (GATE, UP, DOWN), Report(LOG), rank
        made = LayerTable(block).experts(PREFIX, list(NAMES.values()), E)
        self.projections = dict(zip(self.shards, made, strict=True))
        self.count, self.hidden, self.inner = E, H, inner
        self.dtype, self.device, self.module = torch.float32, "cpu", Module()
        stored = {"w13_": [r for s in (GATE, UP) for r in self.projections[s].layers],
                  "w2_": self.projections[DOWN].layers}  # fmt: skip
        self.wait(self.module, stored, placeholder, self.receive)

    def receive(self, name: str, param: Any, tensor: torch.Tensor, shard: str, expert: int) -> None:
        cut = Cut() if self.inner == INNER else self.inner_cut(shard, self.rank)
        part = self.part(expert, shard, lambda: self.projections[shard].layers[expert], cut)
        if name in part.names:
            part.take(name, tensor)


def checkpoint(block: Any) -> list[dict[str, Stored]]:
    return [
        {
            shard: stored(block, f"{PREFIX}.{e}.{name}", *((H, INNER) if shard == DOWN else (INNER, H)), "moe")
            for shard, name in NAMES.items()
        }
        for e in range(E)
    ]


def fill(experts: Experts, layers: list[dict[str, Stored]]) -> None:
    for e, own in enumerate(layers):
        for shard, layer in own.items():
            load(experts.module, layer.tensors, shard, e, stem="w2_" if shard == DOWN else "w13_")


def gate(function: Any, hidden: torch.Tensor) -> torch.Tensor:
    first, second = hidden.chunk(2, dim=-1)
    result: torch.Tensor = function(first) * second
    return result


def expected(layers: list[dict[str, Stored]], function: Any, x: Any, index: Any, share: Any) -> torch.Tensor:
    total = torch.zeros_like(x)
    for row in range(x.shape[0]):
        for e, weight in zip(index[row].tolist(), share[row], strict=True):
            if e < E:
                own, h = layers[e], x[row : row + 1]
                total[row] += weight * own[DOWN](function(own[GATE](h)) * own[UP](h))[0]
    return total


#: the last token's second expert lives on another rank
BATCH = (torch.randn(4, H), torch.tensor([[0, 1], [2, 0], [1, 2], [2, E]]), torch.rand(4, 2))


@pytest.mark.parametrize("name", ["silu", None], ids=["one that fused kernels know", "one that they do not"])
@pytest.mark.parametrize("block", [ALIKE, MIXED], ids=["alike", "mixed"])
def test_experts(block: Any, name: str | None) -> None:
    function = F.silu if name else torch.tanh
    layers, experts = checkpoint(block), Experts(block)
    fill(experts, layers)
    run = experts.bind(experts.module, (partial(gate, function), name))
    torch.testing.assert_close(run(*BATCH), expected(layers, function, *BATCH), rtol=1e-3, atol=1e-3)
    assert len(experts.report.kernels) == 3 * E and not dict(experts.module.named_parameters())


def test_ranks_add_up() -> None:
    layers, total = checkpoint(ALIKE), torch.zeros(4, H)
    for rank in range(2):
        experts = Experts(ALIKE, INNER // 2, rank)
        fill(experts, layers)
        total += experts.bind(experts.module, (partial(gate, F.silu), "silu"))(*BATCH)
    torch.testing.assert_close(total, expected(layers, F.silu, *BATCH), rtol=1e-3, atol=1e-3)


def test_an_expert_without_tensors_is_named_with_what_it_needs() -> None:
    experts = Experts(ALIKE)
    fill(experts, checkpoint(ALIKE)[:2])
    with pytest.raises(CheckpointError, match="no tensor of expert 2") as caught:
        experts.bind(experts.module, (partial(gate, F.silu), "silu"))
    assert caught.value.layer == f"{PREFIX}.*.gate_proj" and "weight_packed" in str(caught.value.required)
