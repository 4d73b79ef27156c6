"""What concerns more than one matrix: caches, attention, tensor parallelism."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_plans as tiny
from planning import ATTN, MLP, OUTSIDE, codes, error, soft, tiny_registry  # noqa: F401
from tiny_plans import checkpoint, layers

from quantdispatch.registry.errors import CheckpointError, NoSchemeFound
from quantdispatch.registry.plan import plan

# ------------------------------------------------------------------ kv cache and attention

FP8_CACHE = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}


def attention_tensors(**scales: Any) -> dict[str, Any]:
    projections = layers(*(f"{ATTN}.{p}_proj" for p in "qkvo"))
    return {
        **projections,
        **{f"{ATTN}.{name}": ("F32", [1]) for name in scales},
        **tiny.dense("visual.0.attn.qkv_proj"),
    }


@pytest.mark.parametrize(
    "scales",
    [
        ("k_scale", "v_scale"),
        ("k_scale", "k_zero_point", "v_scale", "v_zero_point", "q_scale"),
        ("k_proj.output_scale", "v_proj.output_scale"),
    ],
)
def test_kv_cache_has_one_entry_an_attention_module(tmp_path: Path, scales: tuple[str, ...]) -> None:
    config = tiny.config(kv_cache_scheme=FP8_CACHE, ignore=["re:visual.*"])
    result = soft(tmp_path, config, attention_tensors(**dict.fromkeys(scales)))
    caches = [layer for layer in result.layers.values() if layer.kind == "kv_cache"]
    assert [cache.name for cache in caches] == [ATTN] and set(caches[0].tensors) == set(scales)
    assert caches[0].classes == ("LlamaAttention",) and caches[0].inputs is not None
    assert (caches[0].scheme, caches[0].kernel, caches[0].shape) == ("kv_fp8", "reference/kv_cache", None)
    assert caches[0].spec is not None and (caches[0].spec.op, caches[0].spec.weights) == ("kv_cache", None)
    assert not result.errors


@pytest.mark.parametrize(
    ("scheme", "scales", "field", "words"),
    [
        (FP8_CACHE, (), "k_scale", "k_scale is missing"),
        (FP8_CACHE, ("k_scale",), "v_scale", "v_scale is missing"),
        (FP8_CACHE, ("k_proj.output_scale",), "v_scale", "v_scale is missing"),
        (FP8_CACHE, ("k_scale", "k_proj.output_scale", "v_scale"), "k_proj.output_scale", "k_scale is stored twice"),
        (FP8_CACHE, ("k_scale", "v_scale", "prob_output_scale"), "prob_output_scale", "has no use for"),
    ],
)
def test_caches_whose_scales_do_not_fit(tmp_path: Path, scheme: Any, scales: Any, field: str, words: str) -> None:
    config = tiny.config(kv_cache_scheme=scheme, ignore=["re:visual.*"])
    found = error(soft(tmp_path, config, attention_tensors(**dict.fromkeys(scales))), ATTN)
    assert isinstance(found, CheckpointError) and found.field == field and words in str(found)


@pytest.mark.parametrize("change", [{"type": "int"}, {"symmetric": False}, {"num_bits": 4}, {"strategy": "channel"}])
def test_caches_without_a_rule(tmp_path: Path, change: Any) -> None:
    config = tiny.config(kv_cache_scheme={**FP8_CACHE, **change}, ignore=["re:visual.*"])
    result = soft(tmp_path, config, attention_tensors(k_scale=None, v_scale=None))
    found = error(result, ATTN)
    assert isinstance(found, NoSchemeFound) and "take kv_cache_scheme out of the config" in str(found)
    assert len(found.nearest) == 3 and list(result.errors) == [found]


def test_a_cache_with_a_scale_a_head(tmp_path: Path) -> None:
    config = tiny.config(kv_cache_scheme={**FP8_CACHE, "strategy": "attn_head"}, ignore=["re:visual.*"])
    tensors = {**attention_tensors(), f"{ATTN}.k_scale": ("BF16", [4, 1, 1]), f"{ATTN}.v_scale": ("BF16", [4, 1, 1])}
    assert soft(tmp_path / "right", config, tensors).layers[ATTN].error is None
    tensors[f"{ATTN}.v_scale"] = ("BF16", [2, 1, 1])
    found = error(soft(tmp_path / "wrong", config, tensors), ATTN)
    assert isinstance(found, CheckpointError) and found.field == "v_scale" and "numbers of heads" in str(found)


@pytest.mark.parametrize("degree", [1, 4])
@pytest.mark.parametrize("target", ["LlamaAttention", "re:.*self_attn$", ATTN])
def test_groups_that_target_attention(tmp_path: Path, target: str, degree: int) -> None:
    config = tiny.config(tiny.group(), tiny.group(None, FP8_CACHE, targets=[target]), ignore=["re:visual.*"])
    scales = attention_tensors(k_scale=None, v_scale=None, q_scale=None)
    result = soft(tmp_path, config, {**scales, f"{ATTN}.sinks": ("BF16", [8])}, tensor_parallel=degree)
    layer = result.layers[ATTN]
    assert (layer.kind, layer.group, layer.target) == ("attention", "group_1", target)
    assert (layer.scheme, layer.kernel, layer.error) == ("kv_fp8", "reference/kv_cache", None)
    assert not any(p.code == "unmatched-target" for p in result.problems)


def test_attention_needs_the_scale_of_its_queries(tmp_path: Path) -> None:
    config = tiny.config(tiny.group(), tiny.group(None, FP8_CACHE, targets=["LlamaAttention"]), ignore=["re:visual.*"])
    found = error(soft(tmp_path, config, attention_tensors(k_scale=None, v_scale=None)), ATTN)
    assert isinstance(found, CheckpointError) and found.field == "q_scale"


def test_a_pattern_that_hits_the_projections_too_does_not_mean_attention(tmp_path: Path) -> None:
    config = tiny.config(tiny.group(targets=["re:.*self_attn.*"]), ignore=["re:visual.*"])
    assert ATTN not in plan(checkpoint(tmp_path, config, attention_tensors())).layers


# ---------------------------------------------------------------------------------- tensor parallelism


@pytest.mark.parametrize(
    ("name", "degree", "expected"),
    [
        ("q_proj", 2, (64, 128)), ("q_proj", 4, (32, 128)), ("o_proj", 2, (128, 64)), ("o_proj", 4, (128, 32)),
        ("gate", 4, (128, 128)), ("o_proj", 8, "the largest tensor_parallel that fits this layer is 4"),
        ("q_proj", 3, "the largest tensor_parallel that fits this layer is 2"),
        ("q_proj", 256, "the largest tensor_parallel that fits this layer is 128"),
        ("o_proj", 10**30, "the largest tensor_parallel that fits this layer is 4"),
    ],
)  # fmt: skip
def test_tensor_parallel(tmp_path: Path, name: str, degree: int, expected: Any) -> None:
    full = f"{ATTN}.{name}"
    folder = checkpoint(tmp_path, tiny.config(), layers(full, n=128, k=128), 128, 128)
    layer = plan(folder, tensor_parallel=degree, strict=False).layers[full]
    if isinstance(expected, str):
        assert isinstance(layer.error, CheckpointError) and expected in str(layer.error)
        assert layer.error.field == "tensor_parallel" and layer.error.observed == degree
    else:
        assert layer.spec is not None and (layer.spec.n, layer.spec.k) == expected and layer.error is None
        assert layer.shape is not None and (layer.shape.n, layer.shape.k) == (128, 128)


@pytest.mark.parametrize(("name", "degree", "fits"), [("o_proj", 2, True), ("q_proj", 2, True), ("o_proj", 4, False)])
def test_blocks_are_not_cut(tmp_path: Path, name: str, degree: int, fits: bool) -> None:
    block = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
    inputs = {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 128, "dynamic": True}
    tensors = {f"{ATTN}.{name}.weight": ("F8_E4M3", [256, 256]), f"{ATTN}.{name}.weight_scale": ("BF16", [2, 2])}
    config = tiny.config(tiny.group(block, inputs), fmt="float-quantized", ignore=())
    layer = soft(tmp_path, config, tensors, tensor_parallel=degree).layers[f"{ATTN}.{name}"]
    assert layer.scheme == "w8a8_fp8" and (layer.error is None) == fits
    assert fits or "that fits this layer is 2" in str(layer.error)


def test_words_are_not_cut(tmp_path: Path) -> None:
    """96 columns of 4 bits are 12 words: a quarter is 3 words and an eighth is none."""
    channel = {**tiny.INT4, "strategy": "channel", "group_size": None}
    tensors = layers(f"{ATTN}.o_proj", group=-1, k=96)
    folder = checkpoint(tmp_path, tiny.config(tiny.group(channel), ignore=()), tensors, 64, 96)
    fitting = [d for d in (1, 2, 3, 4, 6, 8, 12, 16, 24) if not plan(folder, tensor_parallel=d, strict=False).errors]
    assert fitting == [1, 2, 3, 4, 6, 12]
