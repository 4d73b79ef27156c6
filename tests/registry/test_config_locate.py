"""Where a quantization config may stand, and which one counts."""

from __future__ import annotations

from typing import Any

import pytest

from quantdispatch.registry.config import find_quantization_config, parse_config
from quantdispatch.registry.errors import ConfigError

BLOCK: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 128}}},
}
OTHER: dict[str, Any] = {**BLOCK, "ignore": ["lm_head"]}
FOREIGN: dict[str, Any] = {"quant_method": "gptq", "bits": 4}


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (BLOCK, ""),
        ({"config_groups": {}}, ""),
        ({"quant_method": "compressed-tensors", "format": "dense"}, ""),
        (FOREIGN, ""),
        ({"model_type": "llama", "quantization_config": BLOCK}, "quantization_config"),
        ({"compression_config": BLOCK}, "compression_config"),
        ({"quantization": BLOCK}, "quantization"),
        ({"text_config": {"quantization_config": BLOCK}}, "text_config.quantization_config"),
        ({"llm_config": {"compression_config": BLOCK}}, "llm_config.compression_config"),
        ({"language_config": {"quantization_config": BLOCK}}, "language_config.quantization_config"),
        (
            {"thinker_config": {"text_config": {"quantization_config": BLOCK}}},
            "thinker_config.text_config.quantization_config",
        ),
        (
            {"quantization_config": None, "text_config": {"quantization_config": BLOCK}},
            "text_config.quantization_config",
        ),
        ({"quantization_config": BLOCK, "text_config": {"quantization_config": OTHER}}, "quantization_config"),
        ({"quantization_config": BLOCK, "compression_config": OTHER}, "quantization_config"),
        (
            {"audio_config": {"quantization_config": OTHER}, "text_config": {"quantization_config": BLOCK}},
            "text_config.quantization_config",
        ),
        # A method beside a block does not make config.json a block.
        ({"quant_method": "compressed-tensors", "quantization_config": BLOCK}, "quantization_config"),
    ],
)
def test_found(raw: dict[str, Any], path: str) -> None:
    found = find_quantization_config(raw)
    assert found is not None
    block, where = found
    assert where == path
    if path:
        assert block == BLOCK


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"model_type": "llama"},
        {"quantization_config": None},
        {"text_config": {"vision": {"quantization_config": BLOCK}}},
        {"quantization": {"bits": 4}},
        {"sub": [{"quantization_config": BLOCK}]},
        {"a_config": {"b_config": {"c_config": {"d_config": {"quantization_config": BLOCK}}}}},
    ],
)
def test_not_found(raw: dict[str, Any]) -> None:
    assert find_quantization_config(raw) is None
    with pytest.raises(ConfigError, match="no quantization_config") as caught:
        parse_config(raw)
    assert caught.value.exit_code == 2 and caught.value.remedy


@pytest.mark.parametrize("value", ["int4", 4, [BLOCK], True])
def test_a_block_that_is_no_object(value: Any) -> None:
    for raw, path in (
        ({"quantization_config": value}, "quantization_config"),
        ({"text_config": {"compression_config": value}}, "text_config.compression_config"),
    ):
        with pytest.raises(ConfigError, match="required an object") as caught:
            find_quantization_config(raw)
        assert caught.value.field == path


@pytest.mark.parametrize("raw", [None, [], "x", 3])
def test_no_object_at_all(raw: Any) -> None:
    with pytest.raises(ConfigError, match="required an object"):
        parse_config(raw)


def test_a_second_config_is_reported() -> None:
    twice = {"quantization_config": BLOCK, "text_config": {"quantization_config": OTHER}}
    config = parse_config(twice)
    assert [(p.code, p.path) for p in config.problems] == [("second-config", "text_config.quantization_config")]
    # A copy of the same says nothing new.
    assert (
        parse_config({"quantization_config": BLOCK, "text_config": {"quantization_config": dict(BLOCK)}}).problems == ()
    )


def test_a_block_saved_inside_itself() -> None:
    """Transformers of 2024 wrote ``{"quantization_config": {...}, "sparsity_config": {...}}`` as the block."""
    raw = {
        "quantization_config": {"quant_method": "compressed-tensors", "quantization_config": BLOCK, "version": "0.9"}
    }
    config = parse_config(raw)
    assert (config.path, config.version, len(config.groups)) == ("quantization_config.quantization_config", "0.9", 1)
    assert config.problems == ()


def test_a_config_that_holds_itself() -> None:
    raw: dict[str, Any] = {"text_config": {}}
    raw["text_config"]["text_config"] = raw["text_config"]
    assert find_quantization_config(raw) is None
    block: dict[str, Any] = {**BLOCK}
    block["self"] = block
    with pytest.raises(ConfigError, match="nested too deeply"):
        parse_config(block)
