"""Reading quantization configs: what each value means, and what each flaw is answered with."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.config import PROBLEM_CODES, ConfigGroup, ConfigProblem, QuantConfig, parse_config
from quantdispatch.registry.errors import ConfigError

INT4: dict[str, Any] = {"num_bits": 4, "type": "int", "group_size": 128}
FP8_TOKEN: dict[str, Any] = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}


def block(**changes: Any) -> dict[str, Any]:
    """A valid W4A16 block with changes at the top level."""
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": dict(INT4)}},
        "ignore": ["lm_head"],
        **changes,
    }


def with_group(**changes: Any) -> dict[str, Any]:
    return block(config_groups={"group_0": {"targets": ["Linear"], "weights": dict(INT4), **changes}})


def with_weights(**changes: Any) -> dict[str, Any]:
    return with_group(weights={**INT4, **changes})


def codes(config: QuantConfig) -> list[str]:
    return [problem.code for problem in config.problems]


MALFORMED: list[tuple[dict[str, Any], str, str]] = [
    (block(config_groups=[]), "config_groups", "an object of groups"),
    (block(config_groups={"group_0": "W4A16"}), "config_groups.group_0", "a list of targets"),
    (block(config_groups={"group_0": ["Linear"]}), "config_groups.group_0", "preset"),
    (block(config_groups={"W4A17": ["Linear"]}), "config_groups.W4A17", "one of W4A1"),
    (block(config_groups={"W4A16": ["Linear", 3]}), "config_groups.W4A16.1", "a string"),
    (block(config_groups={3: {}}), "config_groups", "strings"),
    (with_group(targets="Linear"), "config_groups.group_0.targets", "a list of strings"),
    (with_group(targets=["Linear", None]), "config_groups.group_0.targets.1", "a string"),
    (with_group(weights="int4"), "config_groups.group_0.weights", "an object"),
    (with_weights(num_bits={"experts": 4}), "config_groups.group_0.weights.num_bits", "an integer"),
    (with_group(format=3), "config_groups.group_0.format", "a string"),
    (with_group(format="mixed-precision"), "config_groups.group_0.format", "format of this group"),
    (with_group(format="marlin-24"), "config_groups.group_0.format", "marlin-24 are sparse"),
    (with_group(kv_cache_scheme={"num_bits": 8}), "config_groups.group_0.kv_cache_scheme", "top level"),
    (
        with_group(input_activations={"strategy": "channel"}),
        "config_groups.group_0.input_activations.strategy",
        "token",
    ),
    (
        with_group(input_activations={"strategy": "block", "block_structure": "1x128"}),
        "config_groups.group_0.input_activations.strategy",
        "not a strategy for activations",
    ),
    (
        with_group(input_activations={**FP8_TOKEN, "actorder": "weight"}),
        "config_groups.group_0.input_activations.actorder",
        "no activation ordering",
    ),
    (
        with_group(output_activations={"group_size": 32, "actorder": True}),
        "config_groups.group_0.output_activations.actorder",
        "no activation ordering",
    ),
    (block(format=["pack-quantized"]), "format", "a string"),
    (block(format="sparse-24-bitmask"), "format", "sparse-24-bitmask"),
    (block(sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config.format", "sparse-24-bitmask"),
    (block(sparsity_config={"global_sparsity": 0.5}), "sparsity_config.format", "missing"),
    (block(sparsity_config="dense"), "sparsity_config", "an object"),
    (block(transform_config=[]), "transform_config", "an object"),
    (block(transform_config={"config_groups": 3}), "transform_config.config_groups", "an object"),
    (block(moe_sparsity_config=3), "moe_sparsity_config", "an object"),
    (block(ignore="lm_head"), "ignore", "a list of strings"),
    (block(ignore=["lm_head", 3]), "ignore.1", "a string"),
    (block(kv_cache_scheme={"num_bits": "x"}), "kv_cache_scheme.num_bits", "an integer"),
    (block(kv_cache_scheme=8), "kv_cache_scheme", "an object"),
    (block(quantization_status=1), "quantization_status", "a string"),
    (block(global_compression_ratio="half"), "global_compression_ratio", "a number"),
    (block(version=0.12), "version", "a string"),
    (block(quant_method=["compressed-tensors"]), "quant_method", "compressed-tensors"),
]


@pytest.mark.parametrize(("raw", "field", "says"), MALFORMED, ids=[f"{row[1]}-{i}" for i, row in enumerate(MALFORMED)])
def test_malformed_values(raw: dict[str, Any], field: str, says: str) -> None:
    """The same error for a bare block and a whole config.json, with the key path of each."""
    for config, path in (
        (raw, field),
        ({"model_type": "llama", "quantization_config": raw}, f"quantization_config.{field}"),
    ):
        with pytest.raises(ConfigError, match=re.escape(says)) as caught:
            parse_config(config)
        assert caught.value.field == path
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["awq", "gptq", "modelopt", "fp8", "bitsandbytes", "quark", "AWQ"])
def test_foreign_methods(method: str) -> None:
    with pytest.raises(ConfigError, match=f"{method}.*install a plugin") as caught:
        parse_config({"quantization_config": {"quant_method": method, "bits": 4}})
    assert caught.value.field == "quantization_config.quant_method" and caught.value.exit_code == 2


@pytest.mark.parametrize("method", ["compressed-tensors", "compressed_tensors", "Compressed-Tensors"])
def test_our_method(method: str) -> None:
    config = parse_config(block(quant_method=method))
    assert config.quant_method == "compressed-tensors" and config.problems == ()


def test_missing_method() -> None:
    raw = block()
    del raw["quant_method"]
    assert codes(parse_config(raw)) == ["no-quant-method"]
    # An override without groups must not read as "nothing is quantized".
    with pytest.raises(ConfigError, match="quant_method: missing"):
        parse_config({"quantization_config": {"ignore": ["lm_head"]}})
    with pytest.raises(ConfigError, match="modelopt"):
        parse_config({**raw, "quant_algo": "NVFP4"})


PROBLEMS: list[tuple[dict[str, Any], str, str]] = [
    (block(future_key=[1]), "unknown-key", "future_key"),
    (with_group(observer="mse"), "unknown-key", "config_groups.group_0.observer"),
    (with_group(kv_cache_scheme=None), "unknown-key", "config_groups.group_0.kv_cache_scheme"),
    (with_weights(rotation="had"), "unknown-key", "config_groups.group_0.weights.rotation"),
    (block(format="nf4-packed"), "unknown-format", "format"),
    (with_group(format="nf4-packed"), "unknown-format", "config_groups.group_0.format"),
    (block(quantization_status="applied"), "unknown-status", "quantization_status"),
    (block(config_groups={}), "no-groups", "config_groups"),
    (block(config_groups=None), "no-groups", "config_groups"),
    (with_group(targets=[]), "no-targets", "config_groups.group_0.targets"),
    (block(config_groups={"W4A16": []}), "no-targets", "config_groups.W4A16"),
    (block(config_groups={"W4A16": ["Linear"], "W8A8": ["Linear"]}), "duplicate-target", "config_groups.W8A8"),
    (block(sparsity_config={"format": "dense"}), "dense-sparsity", "sparsity_config"),
    (block(moe_sparsity_config={"method": "prune"}), "moe-sparsity", "moe_sparsity_config"),
    (
        with_group(
            weights={"num_bits": 8, "group_size": 64},
            input_activations={"num_bits": 8, "group_size": 32, "dynamic": True},
        ),
        "group-sizes-differ",
        "config_groups.group_0",
    ),
]


@pytest.mark.parametrize(("raw", "code", "path"), PROBLEMS, ids=[f"{row[1]}-{i}" for i, row in enumerate(PROBLEMS)])
def test_problems(raw: dict[str, Any], code: str, path: str) -> None:
    config = parse_config({"quantization_config": raw})
    assert [(p.code, p.path) for p in config.problems] == [(code, f"quantization_config.{path}")]
    assert str(config.problems[0]).startswith("quantization_config")


def test_every_problem_code_is_tested() -> None:
    elsewhere = {"no-quant-method", "second-config", "sibling-key"}
    assert {row[1] for row in PROBLEMS} | elsewhere == set(PROBLEM_CODES)


def test_unknown_keys_keep_their_values() -> None:
    config = parse_config(with_weights(rotation={"size": 64}) | {"future_key": [1, None]})
    assert config.unknown_keys == {"future_key": [1, None], "config_groups.group_0.weights.rotation": {"size": 64}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"format": None}, {"format": "fakequant"}),
        ({"format": "Pack_Quantized"}, {"format": "pack-quantized"}),
        ({"ignore": None}, {"ignore": ()}),
        ({"ignore": []}, {"ignore": ()}),
        ({"sparsity_config": {}}, {"sparsity_config": None}),
        ({"sparsity_config": None}, {"sparsity_config": None}),
        ({"transform_config": None}, {"transform_config": {}}),
        ({"transform_config": {"config_groups": {}}}, {"transform_config": {}}),
        ({"transform_config": {"config_groups": {"u": {"type": "hadamard"}}}}, None),
        ({"quantization_status": "frozen"}, {"quantization_status": "frozen"}),
        ({"global_compression_ratio": "1.5"}, {"global_compression_ratio": 1.5}),
        ({"version": "0.18.0"}, {"version": "0.18.0"}),
        ({"kv_cache_scheme": {"type": "float"}}, {"kv_cache_scheme": QuantArgs(type="float")}),
    ],
)
def test_top_level_values(changes: dict[str, Any], expected: dict[str, Any] | None) -> None:
    config = parse_config(block(**changes))
    assert config.problems == ()
    for field, value in (expected or changes).items():
        assert getattr(config, field) == value


def test_defaults() -> None:
    raw = block()
    del raw["format"], raw["ignore"]
    config = parse_config(raw)
    assert (config.format, config.ignore, config.kv_cache_scheme, config.version) == ("fakequant", (), None, None)
    assert config.effective_format(config.groups[0]) == "fakequant"


def test_a_kv_cache_alone_is_enough() -> None:
    config = parse_config({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}})
    assert config.is_quantized and config.groups == () and config.problems == ()


def test_groups() -> None:
    config = parse_config(
        block(
            config_groups={
                "group_1": {"targets": ["re:.*mlp.*"], "weights": None, "input_activations": FP8_TOKEN},
                "w4a16_asym": ["Linear"],
                "UNQUANTIZED": ["re:.*router"],
            }
        )
    )
    inputs_only, asym, dense = config.groups
    assert inputs_only == ConfigGroup(name="group_1", targets=("re:.*mlp.*",), inputs=QuantArgs(**FP8_TOKEN))
    assert list(inputs_only.sides) == [("inputs", QuantArgs(**FP8_TOKEN))]
    assert (asym.name, asym.preset, asym.weights) == ("w4a16_asym", "W4A16_ASYM", QuantArgs(**INT4, symmetric=False))
    assert list(dense.sides) == [] and dense.targets == ("re:.*router",)
    assert hash(config.groups) == hash(tuple(config.groups))


@pytest.mark.parametrize(
    ("top", "own", "weights", "effective"),
    [
        ("pack-quantized", None, INT4, "pack-quantized"),
        ("pack-quantized", "int-quantized", INT4, "int-quantized"),
        ("mixed-precision", "pack-quantized", INT4, "pack-quantized"),
        ("mixed-precision", None, INT4, None),
        ("naive-quantized", None, {"num_bits": 8}, "int-quantized"),
        ("naive_quantized", None, {"num_bits": 8, "type": "float"}, "float-quantized"),
        ("dense", "naive-quantized", {"num_bits": 8}, "int-quantized"),
        ("naive-quantized", None, None, "naive-quantized"),
        (None, None, INT4, "fakequant"),
    ],
)
def test_effective_format(top: str | None, own: str | None, weights: Any, effective: str | None) -> None:
    raw = with_group(format=own, weights=weights) | {"format": top}
    config = parse_config(raw)
    assert config.effective_format(config.groups[0]) == effective


def test_group_order_is_the_files() -> None:
    names = ["group_10", "group_2", "group_0"]
    raw = block(config_groups={name: {"targets": [name], "weights": INT4} for name in names})
    assert [group.name for group in parse_config(raw).groups] == names


def test_configs_are_immutable_and_serializable() -> None:
    config = parse_config(block(extra={"a": 1}))
    with pytest.raises(ValueError, match="frozen"):
        config.format = "dense"  # type: ignore[misc]
    assert json.loads(config.model_dump_json())["format"] == "pack-quantized"
    assert ConfigProblem(code="unknown-key", path="", message="x").model_dump() == {
        "code": "unknown-key",
        "path": "",
        "message": "x",
    }


def test_parsing_does_not_change_its_input() -> None:
    raw = block(extra={"a": 1})
    before = json.dumps(raw)
    config = parse_config(raw)
    assert json.dumps(raw) == before and parse_config(raw) == config
