"""Who computes what: vLLM's classes or our kernels, for layers that real configs describe."""

from __future__ import annotations

from typing import Any

import pytest
from quantdispatch_vllm import settings
from quantdispatch_vllm.policy import choose, known_to_vllm

from quantdispatch.engines.adapters.fusion import USUAL
from quantdispatch.engines.adapters.layers import LayerTable
from quantdispatch.registry.errors import ConfigError, NoSchemeFound

INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
FP8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
TOKEN = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}
NATIVE = {"quantdispatch-native": "0.1.0"}


def table(groups: dict[str, Any], device: str = "cpu", ignore: tuple[str, ...] = ("lm_head",), **more: Any):
    from quantdispatch.registry.environment import Environment

    block = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": list(ignore), **more}
    environment = Environment.detect(device, NATIVE)
    return LayerTable(block, device=device, environment=environment, fusions=USUAL)


def group(weights: Any, inputs: Any = None, form: str = "pack-quantized", targets: tuple[str, ...] = ("Linear",)):
    return {"targets": list(targets), "weights": weights, "input_activations": inputs, "format": form}


QKV = "model.layers.0.self_attn.qkv_proj"
WNA16 = {"g": group(INT4)}
FP8_DYNAMIC = {"g": group(FP8, TOKEN, "float-quantized")}
#: int8 weights alone, unpacked: vLLM has no class for them
W8A16_INT = {"g": group(INT8, None, "int-quantized")}


@pytest.mark.parametrize(
    "groups, device, order, expected",
    [
        (WNA16, "cpu", "auto", "ours"),
        (WNA16, "cpu", "first", "ours"),
        (WNA16, "cpu", "last", "theirs"),
        (WNA16, "cuda:sm90", "auto", "theirs"),
        (WNA16, "cuda:sm90", "last", "theirs"),
        (FP8_DYNAMIC, "cpu", "auto", "ours"),
        (FP8_DYNAMIC, "cuda:sm90", "auto", "theirs"),
        (W8A16_INT, "cpu", "last", "ours"),
        (W8A16_INT, "cuda:sm80", "auto", "ours"),
    ],
)
def test_choice(groups, device: str, order: str, expected: str) -> None:
    assert choose(table(groups, device).resolve(QKV), device, order) == expected


def test_the_same_contract_is_what_makes_it_vllms() -> None:
    assert known_to_vllm(table(WNA16, "cuda:sm90").resolve(QKV))
    assert not known_to_vllm(table(W8A16_INT, "cuda:sm90").resolve(QKV))


def test_what_is_ignored_is_dense() -> None:
    assert choose(table(WNA16, ignore=("re:.*attn.*",)).resolve(QKV), "cpu", "auto") == "dense"


def test_members_that_differ_are_ours_to_split_and_else_an_error_that_names_them() -> None:
    groups = {"a": group(INT4, targets=("re:.*v_proj",)), "b": group(INT8, None, "pack-quantized")}
    module = table(groups).resolve(QKV)
    assert choose(module, "cpu", "last") == "ours"
    assert [layer.weights.num_bits for layer in module.layers] == [8, 8, 4]
    with pytest.raises(ConfigError, match=r"q_proj.*v_proj"):
        module.one()


def test_a_regular_expression_means_the_members_and_not_the_fused_name() -> None:
    """vLLM matches "re:.*v_proj" against "qkv_proj", and leaves all three dense."""
    module = table(WNA16, ignore=("re:.*v_proj",)).resolve(QKV)
    assert [layer.scheme for layer in module.layers] == ["wNa16_int", "wNa16_int", "dense"]


def test_what_no_rule_accepts_is_the_rules_error() -> None:
    odd = {"g": group({**INT4, "type": "float", "num_bits": 5})}
    with pytest.raises((NoSchemeFound, ConfigError)):
        choose(table(odd).resolve(QKV), "cpu", "auto")


@pytest.mark.parametrize("value", ["auto", "first", "last"])
def test_orders(monkeypatch, value: str) -> None:
    monkeypatch.setenv(settings.KERNELS, value)
    assert settings.order() == value


def test_a_wrong_order_is_told(monkeypatch) -> None:
    monkeypatch.setenv(settings.KERNELS, "second")
    with pytest.raises(ValueError, match="auto, first, last"):
        settings.order()
