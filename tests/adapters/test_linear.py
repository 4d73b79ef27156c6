"""Modules of an engine, loaded tensor by tensor and computed by our kernels, without an engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_stand_ins import Linear, load, waiting
from stored_layers import config, inputs, stored, weights
from torch.nn import Module, Parameter

from quantdispatch.engines.adapters.linear import created
from quantdispatch.engines.adapters.sharding import Partition, Shards
from quantdispatch.registry.errors import CheckpointError, ConfigError

PACKED, K = "pack-quantized", 64
NAMES, SIZES = ["m.q_proj", "m.k_proj", "m.v_proj"], [64, 32, 32]
ALIKE = config((["Linear"], weights(4, 32, symmetric=False), None, PACKED))
#: int8, int4 and dense members of one module
MIXED = config(
    (["re:.*q_proj"], weights(8, "channel"), inputs(), "int-quantized"), (["re:.*k_proj"], weights(), None, PACKED)
)


@pytest.mark.parametrize("block", [ALIKE, MIXED], ids=["alike", "mixed"])
def test_members_are_computed_each_as_it_is_stored(block: Any) -> None:
    method = Linear()
    module = waiting(method, block, NAMES, SIZES, K)
    layers = [stored(block, name, size, K) for name, size in zip(NAMES, SIZES, strict=True)]
    for shard, layer in zip("qkv", layers, strict=True):
        load(module, layer.tensors, shard)
    method.bind(module)
    assert not dict(module.named_parameters()), "what was waited for is gone"
    x = torch.randn(3, K)
    expected = torch.cat([layer(x) for layer in layers], dim=-1)
    torch.testing.assert_close(method.apply(module, x, torch.ones(128)), expected + 1, rtol=1e-3, atol=1e-3)
    assert set(method.report.kernels) == set(NAMES)


def test_kernels_compute_with_buffers_of_the_module() -> None:
    """So that what moves a module, or compiles it, finds them."""
    method = Linear()
    module = waiting(method, ALIKE, NAMES[:1], SIZES[:1], K)
    load(module, stored(ALIKE, NAMES[0], 64, K).tensors)
    method.bind(module)
    buffers = dict(module.named_buffers())
    assert buffers and all(name.startswith("quantdispatch_0_") for name in buffers)
    assert {id(tensor) for tensor in method.state(module, 0).values()} == {id(tensor) for tensor in buffers.values()}
    assert not module.state_dict(), "and no checkpoint is made of them"


def test_ranks_side_by_side_are_the_whole_layer() -> None:
    layer, x, parts = stored(ALIKE, "m.o_proj", 64, K), torch.randn(3, K), []
    for rank in range(4):
        method = Linear()
        module = waiting(method, ALIKE, ["m.o_proj"], [16], K)
        method.shards = Shards((Partition(64, 16 * rank, 16),), None, K)
        load(module, layer.tensors)
        method.bind(module)
        parts.append(method.apply(module, x))
    torch.testing.assert_close(torch.cat(parts, dim=-1), layer(x), rtol=1e-3, atol=1e-3)


def test_a_member_without_tensors_is_named_with_what_it_needs() -> None:
    method = Linear()
    module = waiting(method, ALIKE, NAMES, SIZES, K)
    load(module, stored(ALIKE, NAMES[0], 64, K).tensors, "q")
    with pytest.raises(CheckpointError, match="no tensor of this layer") as caught:
        method.bind(module)
    assert caught.value.layer == "m.k_proj" and "weight_packed" in str(caught.value.required)


@pytest.mark.parametrize("refusal", [AssertionError(), ValueError("no such group"), ImportError("no op")])
def test_where_an_engine_refuses_after_it_began_nothing_is_left(refusal: Exception) -> None:
    module = Module()
    module.register_parameter("bias", Parameter(torch.zeros(1)))

    def create() -> None:
        module.register_parameter("weight_packed", Parameter(torch.zeros(1)))
        raise refusal

    assert created(module, create) is refusal and set(dict(module.named_parameters())) == {"bias"}


def test_what_an_engine_creates_stays() -> None:
    module = Module()
    assert created(module, lambda: module.register_parameter("weight", Parameter(torch.zeros(1)))) is None
    assert set(dict(module.named_parameters())) == {"weight"}


def test_members_that_cannot_be_told_apart_must_be_alike() -> None:
    with pytest.raises(ConfigError, match=r"m\.q_proj.*m\.k_proj"):
        waiting(Linear(), MIXED, NAMES, [128], K)
    module: Module = waiting(Linear(), ALIKE, NAMES, [128], K)
    assert {"weight_packed", "weight_scale", "weight_zero_point"} <= set(dict(module.named_parameters()))
