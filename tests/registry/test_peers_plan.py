"""What plans say of engines: layers' notes for the plan's device, and errors that tell what an engine would run."""

from __future__ import annotations

import random
from typing import Any

import pytest
from engine_cases import FILES, HERE, KINDS, devices, engine, rows

import quantdispatch as qd
from quantdispatch.registry import plan as plan_module
from quantdispatch.registry.errors import ConfigError, NoSchemeFound, PlanError
from quantdispatch.registry.known_plugins import KNOWN_PLUGINS, known_plugin
from quantdispatch.registry.registry import build

NAMES = {"linear": "model.layers.0.mlp.down_proj", "moe": "model.layers.0.mlp.experts.0.down_proj"}
INT4 = {"num_bits": 4, "group_size": 128}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
TOKEN = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}


@pytest.fixture(autouse=True)
def builtin_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = build()
    monkeypatch.setattr(plan_module, "get_registry", lambda: registry)


def config(weights: Any, inputs: Any = None, form: str = "pack-quantized", **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}, **more}


def planned(raw: dict[str, Any], kind: str = "linear", device: str = "cpu") -> Any:
    return qd.plan(raw, modules={NAMES[kind]: "Linear"}, device=device, strict=False).layers[NAMES[kind]]


def sample() -> list[tuple[str, str, dict[str, Any]]]:
    """A hundred recorded configs that an engine runs, the same ones every time."""
    found = [
        (name, kind, row)
        for name in FILES
        for kind in KINDS
        for row in rows(name, kind, HERE)
        if any("scheme" in outcome for outcome in row["outcome"].values())
    ]
    return random.Random(3).sample(found, 100)


def test_a_hundred_recorded_configs_are_accounted_for() -> None:
    for name, kind, row in sample():
        raw = {"quant_method": "compressed-tensors", **row["quantization_config"]}
        for key, outcome in row["outcome"].items():
            for device, arch, _ in list(devices(key, engine(name).settings[0]))[:2]:
                if "scheme" in outcome:
                    where = "cpu" if device == "cpu" else f"{device}:{arch}"
                    assert accounted(raw, kind, where, name, outcome["scheme"]), (raw, where, outcome)


def accounted(raw: dict[str, Any], kind: str, device: str, name: str, runs: str) -> bool:
    try:
        layer = planned(raw, kind, device)
    except ConfigError as error:
        return runs in error.engines[name] and error.engines[name] in str(error)
    if layer.scheme is None:
        assert isinstance(layer.error, (NoSchemeFound, ConfigError))
        return runs in layer.error.engines[name] and layer.error.engines[name] in layer.to_json()["error"]["message"]
    return runs in layer.equivalents.get(name, ()) or runs in layer.differs.get(name, "")


def test_notes_are_those_of_the_plans_device() -> None:
    raw = config(FP8, TOKEN, "float-quantized")
    new, old = planned(raw, device="cuda:sm90"), planned(raw, device="cuda:sm80")
    assert new.scheme == old.scheme == "w8a8_fp8"
    assert new.to_json()["equivalents"] == {
        "sglang": ["CompressedTensorsW8A8Fp8"],
        "vllm": ["CompressedTensorsW8A8Fp8"],
    }
    assert "below sm89" in old.to_json()["differs"]["vllm"] and not old.equivalents


def test_a_dense_layer_has_no_notes() -> None:
    layer = planned(config(INT4, ignore=[NAMES["linear"]]))
    assert (layer.scheme, layer.equivalents, layer.differs) == ("dense", {}, {})


def test_a_miss_says_what_engines_run_and_what_is_wrong_with_it() -> None:
    error = planned(config(FP8, {"num_bits": 8, "strategy": "token", "dynamic": True}, "float-quantized")).error
    assert isinstance(error, NoSchemeFound)
    text = "vLLM 0.32.0 runs CompressedTensorsW8A16Fp8, which leaves the inputs unquantized"
    assert error.engines["vllm"] == text and text in str(error)
    assert error.to_json()["engines"] == dict(error.engines)


def test_experts_with_zero_points_name_the_plugin_that_brings_them() -> None:
    error = planned(config({**INT4, "symmetric": False}), "moe", "cuda:sm90").error
    assert isinstance(error, NoSchemeFound)
    assert error.engines["vllm"] == "vLLM 0.32.0 runs CompressedTensorsWNA16MoEMethod, as the args say"
    assert "mangles the zero points" in error.engines["sglang"]
    assert error.remedy is not None and "pip install quantdispatch-asym-moe " in error.remedy


def test_a_layer_that_nobody_runs_says_nothing_of_engines() -> None:
    error = planned(config({"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": False})).error
    assert isinstance(error, NoSchemeFound) and "sglang" not in error.engines
    assert "engines" not in planned(config({"num_bits": 16}, form="int-quantized")).error.to_json()


def test_known_plugins_bring_what_no_built_in_rule_accepts() -> None:
    table = build().rules
    for plugin in KNOWN_PLUGINS:
        layer = planned(config({**INT4, "symmetric": False}), "moe")
        facts = qd_facts(layer)
        assert known_plugin(facts) is plugin
        assert table.winner(facts) is None


def qd_facts(layer: Any) -> Any:
    from quantdispatch.registry.facts import LayerFacts

    return LayerFacts(layer.kind, layer.format, layer.weights, layer.inputs, layer.outputs)


def test_transforms_that_an_engine_does_not_read() -> None:
    transforms = {"config_groups": {"R": {"type": "hadamard", "apply": [{"targets": ["Linear"], "location": "input"}]}}}
    layer = planned(config(INT4, transform_config=transforms))
    assert "never reads transform_config" in layer.differs["sglang"]
    assert "vllm" in layer.equivalents


def test_a_config_that_cannot_be_read_says_it_too() -> None:
    with pytest.raises(ConfigError) as caught:
        qd.plan(config({"num_bits": 4, "type": "float", "group_size": 32}, form="marlin-24"))
    assert "CompressedTensorsW4A4Mxfp4, which reads the tensors as mxfp4-pack-quantized stores them" in str(
        caught.value
    )


def test_a_strict_plan_raises_the_same_texts() -> None:
    raw = config(FP8, {"num_bits": 8, "strategy": "token", "dynamic": True}, "float-quantized")
    with pytest.raises(PlanError) as caught:
        qd.plan(raw, modules={NAMES["linear"]: "Linear"})
    assert "SGLang 0.5.23 runs CompressedTensorsW8A16Fp8" in str(caught.value)
