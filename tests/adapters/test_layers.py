"""An engine's names to the checkpoint's layers: fused modules, classes, what was resolved from stored tensors."""

from __future__ import annotations

import pytest

from quantdispatch.engines.adapters.fusion import USUAL, member_names
from quantdispatch.engines.adapters.layers import LayerTable
from quantdispatch.registry.errors import ConfigError

INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}


def table(stored=None, **more):
    group = {"targets": ["Linear"], "weights": INT4, "format": "pack-quantized"}
    block = {"quant_method": "compressed-tensors", "config_groups": {"g": group}, "ignore": ["lm_head"], **more}
    return LayerTable(block, fusions=USUAL, stored=stored)


@pytest.mark.parametrize(
    "name, expected",
    [
        ("a.qkv_proj", ("a.q_proj", "a.k_proj", "a.v_proj")),
        ("qkv_proj", ("q_proj", "k_proj", "v_proj")),
        ("qkv_proj.gate_up_proj", ("qkv_proj.gate_proj", "qkv_proj.up_proj")),
        ("a.my_qkv_proj", ("a.my_qkv_proj",)),
        ("a.o_proj", ("a.o_proj",)),
    ],
)
def test_members(name: str, expected: tuple[str, ...]) -> None:
    assert member_names(name, USUAL) == expected


@pytest.mark.parametrize("kind, quantized", [("linear", True), ("moe", True), ("lm_head", True), ("embedding", False)])
def test_a_class_means_what_the_writer_saw(kind: str, quantized: bool) -> None:
    """``Linear`` is every linear layer, the head too, under whatever class the engine has it, and no embedding."""
    assert table().resolve("model.x", kind, ("ParallelThing",)).quantized is quantized


def test_an_ignored_member_is_dense_and_the_others_are_not() -> None:
    module = table(ignore=["model.k_proj"]).resolve("model.qkv_proj")
    assert [layer.scheme for layer in module.layers] == ["wNa16_int", "dense", "wNa16_int"]
    assert module.quantized and not module.alike
    with pytest.raises(ConfigError, match="model.qkv_proj"):
        module.one()


def test_each_layer_has_its_own_name() -> None:
    module = table().resolve("model.layers.7.mlp.gate_up_proj")
    assert [layer.name for layer in module.layers] == ["model.layers.7.mlp.gate_proj", "model.layers.7.mlp.up_proj"]
    assert module.one().name == "model.layers.7.mlp.gate_proj"


def test_experts() -> None:
    gates, downs = table().experts("model.mlp.experts", ("gate_proj", "down_proj"), 3)
    assert [layer.name for layer in downs.layers] == [f"model.mlp.experts.{e}.down_proj" for e in range(3)]
    assert all(layer.kind == "moe" for layer in gates.layers)


def test_what_a_plan_has_resolved_is_taken_as_it_is() -> None:
    dense = table(ignore=["model.k_proj"]).layer("model.k_proj")
    assert table(stored={"model.k_proj": dense}).layer("model.k_proj") is dense


def test_a_config_that_cannot_be_read() -> None:
    with pytest.raises(ConfigError):
        LayerTable({"quant_method": "compressed-tensors", "config_groups": 3})


def test_a_cache_that_is_not_quantized_is_none() -> None:
    assert table().cache("model.self_attn.attn") is None
    cache = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}
    found = table(kv_cache_scheme=cache).cache("model.self_attn.attn")
    assert found is not None and found.scheme == "kv_fp8"
