"""Blocks of AutoAWQ and GPTQ as the groups that they mean, and those that mean nothing."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quantdispatch as qd
from quantdispatch.cli.app import main
from quantdispatch.testing import assert_rules_clean, registry_with, using_registry

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
UP, DOWN, OUT = (f"model.layers.5.{n}" for n in ("mlp.up_proj", "mlp.down_proj", "self_attn.o_proj"))


def layers(block: Any, *names: str) -> dict[str, Any]:
    return dict(qd.plan({"quantization_config": block}, modules=dict.fromkeys(names, "Linear"), strict=False).layers)


def in_words(layer: Any) -> str:
    return f"{layer.format}: {layer.weights.describe()}" if layer.weights is not None else layer.scheme


@pytest.mark.parametrize(
    ("block", "found"),
    [
        (AWQ, "awq-gemm: int4 asymmetric, group 128"),
        (AWQ | {"quant_method": "AWQ", "version": "GEMM"}, "awq-gemm: int4 asymmetric, group 128"),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, "awq-gemm: int4 asymmetric, group 64"),
        (AWQ | {"version": None, "format": "gemm", "zero_point": False}, "awq-gemm: int4 symmetric, group 128"),
        (AWQ | {"version": "gemv", "group_size": 64}, "awq-gemv: int4 asymmetric, group 64"),
        (AWQ | {"group_size": -1}, "awq-gemm: int4 asymmetric, channel"),
        (GPTQ, "gptq: int4 symmetric, group 128"),
        (GPTQ | {"checkpoint_format": "gptq"}, "gptq: int4 symmetric, group 128"),
        (GPTQ | {"format": "gptq_v2", "sym": False}, "gptq-v2: int4 asymmetric, group 128"),
        (GPTQ | {"bits": 3, "desc_act": True}, "gptq: int3 symmetric, group 128, g_idx"),
        (GPTQ | {"group_size": -1, "desc_act": True}, "gptq: int4 symmetric, channel"),
        (GPTQ | {"sym": False, "meta": {"quantizer": ["gptqmodel:2.0.0"]}}, "gptq-words: int4 asymmetric, group 128"),
        (GPTQ | {"sym": False, "meta": {"quantizer": "optimum:1.2"}}, "gptq: int4 asymmetric, group 128"),
        (GPTQ | {"sym": False, "bits": 3, "meta": {"quantizer": "gptqmodel"}}, "gptq: int3 asymmetric, group 128"),
        (GPTQ | {"modules_in_block_to_quantize": [["mlp.up_proj"], ["mlp.x"]]}, "gptq: int4 symmetric, group 128"),
        (GPTQ | {"modules_in_block_to_quantize": [["self_attn.o_proj"]]}, "dense"),
        (AWQ | {"modules_to_not_convert": ["mlp"]}, "dense"),
        (AWQ | {"modules_to_not_convert": ["layers.5."]}, "dense"),
        (AWQ | {"modules_to_not_convert": ["layers.5"]}, "dense"),
        (AWQ | {"modules_to_not_convert": ["layersx5", "up.proj"]}, "awq-gemm: int4 asymmetric, group 128"),
    ],
)  # fmt: skip
def test_what_a_block_says_of_a_layer(block, found) -> None:
    assert in_words(layers(block, UP)[UP]) == found


@pytest.mark.parametrize(
    ("given", "head"), [({}, "dense"), ({"lm_head": False}, "dense"), ({"lm_head": True}, "wNa16_int")]
)
@pytest.mark.parametrize("blocks", [None, [["mlp.up_proj"]]])
def test_the_head_is_quantized_where_the_block_says_so(given, head, blocks) -> None:
    block = GPTQ | given | {"modules_in_block_to_quantize": blocks}
    assert layers(block, "lm_head")["lm_head"].scheme == head


@pytest.mark.parametrize(
    ("block", "field"),
    [
        (AWQ | {"version": "gemv_fast"}, "version"),
        (AWQ | {"version": None, "checkpoint_format": "marlin"}, "checkpoint_format"),
        (AWQ | {"version": 2}, "version"),
        (AWQ | {"bits": 8}, "bits"),
        (AWQ | {"bits": "4"}, "bits"),
        (AWQ | {"bits": True}, "bits"),
        (AWQ | {"group_size": 0}, "group_size"),
        (AWQ | {"group_size": [128]}, "group_size"),
        (AWQ | {"version": "gemv", "group_size": 48}, "group_size"),
        (AWQ | {"zero_point": "yes"}, "zero_point"),
        (AWQ | {"modules_to_not_convert": "gate"}, "modules_to_not_convert"),
        (AWQ | {"modules_to_not_convert": [1]}, "modules_to_not_convert"),
        ({"quant_method": "gptq", "group_size": 128}, "bits"),
        (GPTQ | {"bits": 5}, "bits"),
        (GPTQ | {"group_size": -2}, "group_size"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format"),
        (GPTQ | {"is_marlin_format": True}, "checkpoint_format"),
        (GPTQ | {"pack_dtype": "int64"}, "pack_dtype"),
        (GPTQ | {"sym": 1}, "sym"),
        (GPTQ | {"desc_act": "true"}, "desc_act"),
        (GPTQ | {"dynamic": ["a"]}, "dynamic"),
        (GPTQ | {"dynamic": {"a": 4}}, "dynamic.a"),
        (GPTQ | {"dynamic": {"a": {"format": "marlin"}}}, "dynamic.a.format"),
        (GPTQ | {"dynamic": {"a": {"bits": 6}}}, "bits"),
        (GPTQ | {"modules_in_block_to_quantize": {"a": 1}}, "modules_in_block_to_quantize"),
    ],
)  # fmt: skip
def test_a_block_without_meaning_is_a_config_error_that_names_the_key(block, field) -> None:
    with pytest.raises(qd.ConfigError) as caught:
        layers(block, UP)
    assert caught.value.field == f"quantization_config.{field}" and caught.value.required


# -- rules by module: GPTQModel takes the first pattern that matches, in the order of the file

PATTERNS = [r".*\.mlp\..*", r"model\.layers\.5\.", r".*o_proj$", r".*(up|down)_proj", r"nothing"]
RULES = st.lists(
    st.tuples(st.sampled_from(["", "+:", "-:"]), st.sampled_from(PATTERNS), st.sampled_from([2, 3, 8])), max_size=4
)


@settings(max_examples=60, deadline=None)
@given(RULES)
def test_the_first_rule_that_matches_counts(rules) -> None:
    dynamic = {sign + pattern: {"bits": bits} for sign, pattern, bits in rules}

    def expected(name: str) -> str:
        for key, value in dynamic.items():
            if re.match(key.removeprefix("-:").removeprefix("+:"), name):
                return "dense" if key.startswith("-:") else f"gptq: int{value['bits']} symmetric, group 128"
        return "gptq: int4 symmetric, group 128"

    found = layers(GPTQ | {"dynamic": dynamic}, UP, DOWN, OUT)
    assert {name: in_words(layer) for name, layer in found.items()} == {n: expected(n) for n in (UP, DOWN, OUT)}


def test_a_rule_says_what_it_changes_and_nothing_else() -> None:
    dynamic = {".*down_proj": {"group_size": -1, "sym": False, "damp_percent": 0.1}, ".*up_proj": {"desc_act": True}}
    found = layers(GPTQ | {"dynamic": dynamic}, UP, DOWN)
    assert in_words(found[DOWN]) == "gptq: int4 asymmetric, channel"
    assert in_words(found[UP]) == "gptq: int4 symmetric, group 128, g_idx"


# -- around it


def test_a_block_of_a_part_of_the_model_speaks_of_that_part() -> None:
    inside, outside = f"language_model.{UP}", "vision_tower.blocks.0.up_proj"
    plan = qd.plan({"text_config": {"quantization_config": AWQ}}, modules=dict.fromkeys((inside, outside), "Linear"))
    assert {name: layer.scheme for name, layer in plan.layers.items()} == {inside: "wNa16_int", outside: "dense"}
    assert [p.where for p in plan.problems if p.code == "translated"] == ["text_config.quantization_config"]


@pytest.mark.parametrize("block", [AWQ, GPTQ], ids=["awq", "gptq"])
def test_without_the_plugin_the_error_says_what_to_install(block, tmp_path, capsys) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"quantization_config": block}))
    with using_registry(registry_with()):
        assert main(["explain", str(path)]) == 2
    assert "pip install quantdispatch-awq" in " ".join(capsys.readouterr().err.split())


def test_rules_have_no_findings() -> None:
    assert_rules_clean("quantdispatch_awq")
