"""Plans without tensors: a config.json or a dict gives representatives, or the modules that the caller names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_plans as tiny
from planning import tiny_registry  # noqa: F401

from quantdispatch.registry.errors import CheckpointError, ConfigError, PlanError
from quantdispatch.registry.plan import plan

DATA = Path(__file__).parents[1] / "data"
MOE = {"num_experts": 8, "vocab_size": 100}


def entries(config: Any, **options: Any) -> dict[str, tuple[str, str | None, str | None]]:
    """name -> (kind, group, ignored_by)"""
    result = plan(config, strict=False, **options)
    return {layer.name: (layer.kind, layer.group, layer.ignored_by) for layer in result.layers.values()}


REPRESENTATIVES: dict[str, tuple[Any, dict[str, tuple[str, str | None, str | None]]]] = {
    "class": (tiny.config(ignore=()), {"Linear": ("linear", "group_0", None)}),
    "ignored-names-are-dense": (
        tiny.config(ignore=["lm_head", "re:.*gate", "model.embed_tokens", "Embedding"]),
        {"Linear": ("linear", "group_0", None), "lm_head": ("lm_head", None, "lm_head"),
         "model.embed_tokens": ("embedding", None, "model.embed_tokens")}),
    "exact-names": (
        tiny.config(tiny.group(targets=["m.0.up_proj", "m.0.experts.3.up_proj", "lm_head"]), ignore=()),
        {"m.0.up_proj": ("linear", "group_0", None), "m.0.experts.3.up_proj": ("moe", "group_0", None),
         "lm_head": ("lm_head", "group_0", None)}),
    "exact-name-that-is-ignored": (
        tiny.config(tiny.group(targets=["m.0.up_proj"]), ignore=["re:m.*"]),
        {"m.0.up_proj": ("linear", None, "re:m.*")}),
    "experts-of-the-model": (
        tiny.config(ignore=(), model=MOE),
        {"Linear": ("linear", "group_0", None), "Linear [moe]": ("moe", "group_0", None)}),
    "experts-of-a-nested-model": (
        tiny.config(ignore=(), model={"text_config": {"n_routed_experts": 4}}),
        {"Linear": ("linear", "group_0", None), "Linear [moe]": ("moe", "group_0", None)}),
    "experts-that-are-ignored": (
        tiny.config(ignore=["re:.*experts.*"], model=MOE), {"Linear": ("linear", "group_0", None)}),
    "head-of-its-own": (
        tiny.config(ignore=(), model={"vocab_size": 9, "tie_word_embeddings": False}),
        {"Linear": ("linear", "group_0", None), "lm_head": ("lm_head", "group_0", None)}),
    "expert-pattern": (
        tiny.config(tiny.group(targets=[r"re:.*mlp\.experts\.\d+\..*"]), ignore=(), model=MOE),
        {r"re:.*mlp\.experts\.\d+\..*": ("moe", "group_0", None)}),
    "shared-expert-pattern": (
        tiny.config(tiny.group(targets=["re:.*shared_experts.*"]), ignore=(), model=MOE),
        {"re:.*shared_experts.*": ("linear", "group_0", None)}),
    "pattern-of-both": (
        tiny.config(tiny.group(targets=["re:.*up_proj"]), ignore=(), model=MOE),
        {"re:.*up_proj": ("linear", "group_0", None), "re:.*up_proj [moe]": ("moe", "group_0", None)}),
    "pattern-of-neither": (
        tiny.config(tiny.group(targets=["re:.*q_proj"]), ignore=(), model=MOE),
        {"re:.*q_proj": ("linear", "group_0", None)}),
    "embedding": (
        tiny.config(tiny.group(targets=["Embedding", "re:.*embed_tokens"]), ignore=()),
        {"Embedding": ("embedding", "group_0", None), "re:.*embed_tokens": ("embedding", "group_0", None)}),
    "attention": (
        tiny.config(tiny.group(None, tiny.FP8_TOKEN, targets=["re:.*self_attn$", "LlamaAttention"]), ignore=()),
        {"re:.*self_attn$": ("attention", "group_0", None), "LlamaAttention": ("attention", "group_0", None)}),
    "experts-alone": (
        tiny.config(ignore=["lm_head", "re:.*self_attn.*", "re:.*mlp\\.(gate|up|down)_proj"], model=MOE),
        {"Linear": ("moe", "group_0", None), "lm_head": ("lm_head", None, "lm_head")}),
    "experts-alone-by-names": (
        tiny.config(ignore=["re:.*self_attn.*", *(f"model.layers.0.mlp.{p}_proj" for p in ("gate", "up", "down")),
                            "re:.*shared_experts.*"], model={**MOE, "n_shared_experts": 1}),
        {"Linear": ("moe", "group_0", None),
         **{(n := f"model.layers.0.mlp.{p}_proj"): ("linear", None, n) for p in ("gate", "up", "down")}}),
    "shared-experts-are-left": (
        tiny.config(ignore=["re:.*self_attn.*", "re:.*mlp\\.(gate|up|down)_proj"],
                    model={**MOE, "n_shared_experts": 1}),
        {"Linear": ("linear", "group_0", None), "Linear [moe]": ("moe", "group_0", None)}),
    "routed-and-shared-pattern": (
        tiny.config(tiny.group(targets=["re:.*experts.*"]), ignore=()),
        {"re:.*experts.*": ("moe", "group_0", None), "re:.*experts.* [linear]": ("linear", "group_0", None)}),
    "experts-of-other-names": (
        tiny.config(tiny.group(targets=["re:.*block_sparse_moe.experts.*w[123]$"]), ignore=(),
                    model={"num_local_experts": 8}),
        {"re:.*block_sparse_moe.experts.*w[123]$": ("moe", "group_0", None)}),
    "certain-layers": (
        tiny.config(tiny.group(targets=["re:model\\.layers\\.(57|58)\\.mlp\\.experts\\.\\d+\\.up_proj"]), ignore=()),
        {"re:model\\.layers\\.(57|58)\\.mlp\\.experts\\.\\d+\\.up_proj": ("moe", "group_0", None)}),
    "fused-experts": (
        tiny.config(tiny.group(targets=["model.layers.0.mlp.experts"]), ignore=()),
        {"model.layers.0.mlp.experts": ("moe", "group_0", None)}),
    "everything": (
        tiny.config(tiny.group(targets=["re:.*"]), ignore=(),
                    model={**MOE, "vocab_size": 9, "tie_word_embeddings": False}),
        {"re:.*": ("linear", "group_0", None), "re:.* [moe]": ("moe", "group_0", None),
         "re:.* [lm_head]": ("lm_head", "group_0", None)}),
    "pattern-that-is-ignored": (
        tiny.config(tiny.group(targets=["re:.*self_attn.*"]), ignore=["re:.*self_attn.*"]),
        {"re:.*self_attn.*": ("linear", None, "re:.*self_attn.*")}),
    "norms-are-no-layers": (
        tiny.config(ignore=["model.norm", "model.layers.0.input_layernorm", "m.0.linear_attn.conv1d", "m.0.attn"]),
        {"Linear": ("linear", "group_0", None)}),
    "same-target-twice": (
        tiny.config(tiny.group(), tiny.group(tiny.INT8), ignore=()), {"Linear": ("linear", "group_1", None)}),
    "kv-cache": (
        tiny.config(ignore=(), kv_cache_scheme={"num_bits": 8, "type": "float"}),
        {"Linear": ("linear", "group_0", None), "re:.*self_attn$": ("kv_cache", "kv_cache_scheme", None)}),
}  # fmt: skip


@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_representatives(name: str) -> None:
    config, expected = REPRESENTATIVES[name]
    assert entries(config) == expected


COUNTS: list[tuple[dict[str, Any], bool]] = [
    ({"num_experts": 8}, True), ({"n_routed_experts": 256}, True), ({"num_local_experts": 8}, True),
    ({"moe_num_experts": [64, 64]}, True), ({"num_experts": [0, 16]}, True),
    ({"ffn_config": {"moe_num_experts": 16}}, True),
    ({"moe": {"num_experts": 8}}, True), ({"num_experts": 1}, False), ({"num_experts": None}, False),
    ({"num_experts": True}, False), ({"num_experts": [[8]]}, False), ({"num_experts_per_tok": 8}, False),
    ({"n_shared_experts": 2}, False), ({"zero_expert_num": 4, "num_zero_experts": 4}, False),
]  # fmt: skip


@pytest.mark.parametrize(("model", "expected"), COUNTS, ids=[str(model) for model, _ in COUNTS])
def test_models_with_routed_experts(model: dict[str, Any], expected: bool) -> None:
    kinds = {kind for kind, _, _ in entries(tiny.config(model=model)).values()}
    assert ("moe" in kinds) is expected


def test_patterns_of_two_groups_that_overlap_are_told() -> None:
    patterns = ["re:.*mlp.*", "re:.*layers\\.(56|57)\\..*"]
    for other, told in ((tiny.INT8, True), (tiny.INT4, False)):
        groups = [
            tiny.group(targets=[pattern], weights=w) for pattern, w in zip(patterns, (tiny.INT4, other), strict=True)
        ]
        problems = plan(tiny.config(*groups), strict=False).problems
        assert [p.code for p in problems] == ["no-tensors", *(["target-overlap"] if told else [])]
        if told:
            assert all(
                text in problems[-1].message for text in (*map(repr, patterns), "layers.56.mlp", "group_1 counts")
            )


def test_shapes_are_unknown_and_the_choice_says_so() -> None:
    layer = plan(tiny.config(ignore=())).layers["Linear"]
    assert (layer.shape, layer.kernel) == (None, "cpu/int4") and layer.spec is not None and layer.spec.n is None
    assert any("unknown" in condition for condition in layer.conditions)


@pytest.mark.parametrize("form", ["file", "folder", "dict", "block", "nested"])
def test_every_form_of_a_config(tmp_path: Path, form: str) -> None:
    config = tiny.config(ignore=())
    (tmp_path / "config.json").write_text(json.dumps(config))
    source = {
        "file": tmp_path / "config.json",
        "folder": str(tmp_path),
        "dict": config,
        "block": config["quantization_config"],
        "nested": {"text_config": config},
    }[form]
    result = plan(source)
    assert list(result.layers) == ["Linear"] and [p.code for p in result.problems] == ["no-tensors"]
    assert result.checkpoint is None


def test_modules_instead_of_tensors() -> None:
    config = tiny.config(tiny.group(targets=["MyLinear"]), ignore=["re:.*skip"])
    # one name says nothing of what it derives from; a list is a whole MRO
    given = {
        "m.a": ("MyLinear", "Linear"), "m.b": "Linear", "m.skip": ("MyLinear", "Linear"), "m.experts.0.c": ["MyLinear"],
        "m.embed": "Embedding", "lm_head": "MyLinear", "m.norm": ("RMSNorm", "Module"),
        "m.experts.1.c": ("MyLinear", "Linear"),
    }  # fmt: skip
    assert entries(config, modules=given) == {
        "m.a": ("linear", "group_0", None),
        "m.b": ("linear", None, None),
        "m.skip": ("linear", None, "re:.*skip"),
        "m.experts.0.c": ("linear", None, None),
        "m.embed": ("embedding", None, None),
        "lm_head": ("lm_head", "group_0", None),
        "m.norm": ("linear", None, None),
        "m.experts.1.c": ("moe", "group_0", None),
    }


def test_mixed_precision_without_tensors_is_a_config_error() -> None:
    result = plan(tiny.config(fmt="mixed-precision", ignore=()), strict=False)
    (found,) = result.errors
    assert isinstance(found, ConfigError) and found.field == "quantization_config.config_groups.group_0.format"


def test_transforms_concern_every_pattern() -> None:
    apply = [{"targets": ["re:.*q_proj"], "location": "input"}]
    config = tiny.config(transform_config={"config_groups": {"R": {"type": "hadamard", "apply": apply}}})
    result = plan(config, strict=False)
    assert not result.errors
    assert [layer.transforms for layer in result.layers.values()] == [("R at input (hadamard)",), ()]
    assert [layer.scheme for layer in result.layers.values()] == ["wNa16_int", "dense"]


def test_tensor_parallel_needs_no_shapes() -> None:
    assert plan(tiny.config(ignore=()), tensor_parallel=4).layers["Linear"].kernel == "cpu/int4"


# Real configs: what the rules that exist cover, and what they do not. name -> {kind: scheme or None for a miss}
PUBLISHED: dict[str, dict[str, str | None]] = {
    "compression-config-dense-sparsity.json": {"linear": "wNa16_int"},
    "fp8-block-kv-cache.json": {"linear": "w8a8_fp8", "kv_cache": "kv_fp8"},
    "int4-asym-g128-no-strategy.json": {"linear": "wNa16_int"},
    "int4-int8-mix-g64.json": {"linear": "wNa16_int"},
    "kimi-text-config.json": {"linear": "wNa16_int"},
    "mixed-fp8-block-nvfp4.json": {"linear": "w8a8_fp8"},
    "naive-fp8-frozen.json": {"linear": "w8a8_fp8"},
    "naive-int8-static.json": {"linear": "wNa8_int"},
    "nvfp4-fp8-overlap.json": {"lm_head": "w8a8_fp8"},
    "w8a8-online-rotate.json": {"linear": "wNa8_int"},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs(name: str) -> None:
    result = plan(DATA / "configs" / name, strict=False)
    for kind, scheme in PUBLISHED[name].items():
        layer = next(layer for layer in result.layers.values() if layer.kind == kind and layer.group is not None)
        assert layer.scheme == scheme and (layer.error is None) == (scheme is not None)
    json.dumps(result.to_json())


def test_strict_raises_what_soft_keeps() -> None:
    config = tiny.config(tiny.group({"num_bits": 4, "type": "float", "group_size": 32}), ignore=())
    kept = plan(config, strict=False).errors
    with pytest.raises(PlanError) as caught:
        plan(config)
    assert [str(e) for e in caught.value.errors] == [str(e) for e in kept] and len(kept) == 1
    assert not isinstance(kept[0], CheckpointError)


@pytest.mark.parametrize("source", ["", None, 3])
def test_no_source_is_a_config_error(source: object) -> None:
    with pytest.raises(ConfigError, match="no source to plan"):
        plan(source)  # type: ignore[arg-type]
