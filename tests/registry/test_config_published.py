"""Configs of published checkpoints, cut to what matters here: what each says, or why it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.config import parse_config, parse_json_file
from quantdispatch.registry.errors import ConfigError

CONFIGS = Path(__file__).parent.parent / "data" / "configs"

# Published configs: file, key path, [(group, words per side, effective format)], problems. Sources: the model named, as
# published on the hub, unless another is given.
READ: list[tuple[str, str, list[tuple[str, str, str | None]], list[str]]] = [
    # M7 (compressed-tensors 0.16.0), trimmed: no strategy, so group by its group size.
    ("int4-asym-g128-no-strategy", "quantization_config", [("int4 asymmetric, group 128", "", "pack-quantized")], []),
    # RedHatAI/Qwen3.5-122B-A10B-NVFP4, trimmed as in guoqingbao/vllm.rs src/utils/config.rs: inputs without strategy.
    (
        "nvfp4-inputs-no-strategy",
        "quantization_config",
        [
            (
                "fp4 tensor_group 16, float8_e4m3fn scales",
                "fp4 local-dynamic tensor_group 16, float8_e4m3fn scales",
                "nvfp4-pack-quantized",
            )
        ],
        [],
    ),
    # unsloth/Qwen3.6-27B-NVFP4 without its ignore list: two groups whose targets overlap on layers 56-63.
    (
        "nvfp4-fp8-overlap",
        "quantization_config",
        [
            ("fp8 channel", "fp8 dynamic token", "float-quantized"),
            (
                "fp4 tensor_group 16, float8_e4m3fn scales",
                "fp4 local-dynamic tensor_group 16, float8_e4m3fn scales",
                "nvfp4-pack-quantized",
            ),
        ],
        [],
    ),
    # RedHatAI/DeepSeek-V4-Flash-NVFP4-FP8: mixed precision by regex.
    (
        "mixed-fp8-block-nvfp4",
        "quantization_config",
        [
            ("fp8 block 128x128", "fp8 dynamic group 128", "float-quantized"),
            (
                "fp4 tensor_group 16, float8_e4m3fn scales",
                "fp4 local-dynamic tensor_group 16, float8_e4m3fn scales",
                "nvfp4-pack-quantized",
            ),
        ],
        [],
    ),
    # GLM-5.3 Int4-Int8 mix: two integer groups of one format.
    (
        "int4-int8-mix-g64",
        "quantization_config",
        [
            ("int8 symmetric, group 64", "", "pack-quantized"),
            ("int4 symmetric, group 64", "", "pack-quantized"),
        ],
        [],
    ),
    # llm-compressor issue 680 (ignore list cut): the old key, and sparsity metadata of dense weights.
    (
        "compression-config-dense-sparsity",
        "compression_config",
        [("int4 symmetric, group 128", "", "pack-quantized")],
        ["dense-sparsity"],
    ),
    # nm-testing/Meta-Llama-3.1-8B-Instruct-FP8-hf, simplified as in the transformers docs: naive-quantized and frozen.
    (
        "naive-fp8-frozen",
        "quantization_config",
        [("fp8 static tensor", "fp8 static tensor", "float-quantized")],
        [],
    ),
    # compressed-tensors examples/llama_1.1b/example_quant_config.json and examples/bit_packing/int4_config.json.
    (
        "naive-int8-static",
        "quantization_config",
        [("int8 static tensor", "int8 static tensor", "int-quantized")],
        [],
    ),
    ("int4-tensor-asym", "quantization_config", [("int4 static asymmetric tensor", "", "pack-quantized")], []),
    # moonshotai/Kimi-K2.5: nested in text_config.
    ("kimi-text-config", "text_config.quantization_config", [("int4 symmetric, group 32", "", "pack-quantized")], []),
    # Qwen3.5 MXFP4 checkpoints, as in guoqingbao/vllm.rs src/utils/config.rs.
    (
        "mxfp4-regex-ignore",
        "quantization_config",
        [("fp4 group 32, uint8 scales", "", "mxfp4-pack-quantized")],
        [],
    ),
    ("mxfp4-no-scale-dtype", "quantization_config", [("fp4 group 32", "", "mxfp4-pack-quantized")], []),
    # omniinfer Qwen3-32B W8A8 (input part completed from the same vendor's docs): a foreign key beside the block.
    (
        "w8a8-online-rotate",
        "quantization_config",
        [("int8 symmetric, channel", "int8 dynamic token", "int-quantized")],
        ["sibling-key"],
    ),
    # poolside/Laguna-S-2.1-FP8.
    (
        "fp8-block-kv-cache",
        "quantization_config",
        [("fp8 block 128x128", "fp8 dynamic group 128", "float-quantized")],
        [],
    ),
]


@pytest.mark.parametrize(("name", "path", "groups", "problems"), READ, ids=[row[0] for row in READ])
def test_published_configs(
    name: str, path: str, groups: list[tuple[str, str, str | None]], problems: list[str]
) -> None:
    config = parse_config(parse_json_file(CONFIGS / f"{name}.json"))
    read = [
        (
            group.weights.describe() if group.weights else "",
            group.inputs.describe() if group.inputs else "",
            config.effective_format(group),
        )
        for group in config.groups
    ]
    assert (config.path, read, [p.code for p in config.problems]) == (path, groups, problems)
    assert config.is_quantized and config.unknown_keys == {}


def test_published_kv_cache() -> None:
    config = parse_config(parse_json_file(CONFIGS / "fp8-block-kv-cache.json"))
    assert config.kv_cache_scheme == QuantArgs(num_bits=8, type="float")
    assert config.version == "0.14.1.dev11+gf2ee47b" and config.quantization_status == "compressed"


REFUSED = [
    # Huawei omniinfer: num_bits by module name.
    ("num-bits-mapping", "quantization_config.config_groups.group_0.weights.num_bits", "required an integer"),
    ("num-bits-mapping-16", "quantization_config.config_groups.group_0.weights.num_bits", "self_attn.: 16"),
    # llm-compressor issue 1241: sparse weights and nothing else.
    ("sparse-bitmask", "quantization_config.sparsity_config.format", "sparse-bitmask"),
    # NVIDIA's exporter has config_groups of the same shape; a codebook format out of tree.
    ("modelopt-nvfp4", "quantization_config.quant_method", "modelopt.*plugin"),
    ("foreign-nf4i8", "quantization_config.quant_method", "dgpp_nf4i8.*plugin"),
    # Blaizzy/mlx-vlm tests: a made-up block without targets.
    ("groups-without-targets", "quantization_config.config_groups.group_0.targets", "missing"),
]


@pytest.mark.parametrize(("name", "field", "says"), REFUSED, ids=[row[0] for row in REFUSED])
def test_refused_configs(name: str, field: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        parse_config(parse_json_file(CONFIGS / f"{name}.json"))
    assert caught.value.field == field


def test_every_sample_is_in_a_table() -> None:
    assert {row[0] for row in (*READ, *REFUSED)} == {path.stem for path in CONFIGS.glob("*.json")}
