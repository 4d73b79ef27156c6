"""plan() on checkpoints: every module resolved, kinds, patterns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_plans as tiny
from planning import ATTN, MLP, OUTSIDE, codes, error, soft, tiny_registry  # noqa: F401
from tiny_plans import checkpoint, layers

from quantdispatch.registry.errors import (
    CheckpointError,
)
from quantdispatch.registry.plan import plan

# --------------------------------------------------------------------------------------- what resolves


def test_every_module_has_its_entry(tmp_path: Path) -> None:
    tensors = {**layers(f"{ATTN}.q_proj", f"{MLP}.down_proj"), **OUTSIDE, f"{ATTN}.q_proj.bias": ("BF16", [64])}
    result = plan(checkpoint(tmp_path, tiny.config(), tensors))
    assert list(result.layers) == ["lm_head", "model.embed_tokens", f"{MLP}.down_proj", f"{ATTN}.q_proj"]
    q = result.layers[f"{ATTN}.q_proj"]
    assert (q.kind, q.group, q.target, q.ignored_by, q.format) == (
        "linear",
        "group_0",
        "Linear",
        None,
        "pack-quantized",
    )
    assert (q.scheme, q.backend, q.kernel, q.error) == ("wNa16_int", "cpu", "cpu/int4", None)
    assert q.rule is not None and q.rule.name == "wNa16_int" and q.inferred == "Linear, from its weight_packed"
    assert q.shape is not None and (q.shape.n, q.shape.k) == (64, 64) and set(q.tensors) > {"bias"}
    assert [c.kernel.name for c in q.trace.kernels] == ["cpu/int4", "cpu/int8", "reference"]
    assert q.equivalents["vllm"] == ("CompressedTensorsWNA16",)
    head, embedding = result.layers["lm_head"], result.layers["model.embed_tokens"]
    assert (head.kind, head.scheme, head.ignored_by, head.backend) == ("lm_head", "dense", "lm_head", "torch")
    assert (embedding.kind, embedding.scheme, embedding.ignored_by, embedding.group) == (
        "embedding",
        "dense",
        None,
        None,
    )
    assert not result.problems and not result.errors
    assert (result.architecture, result.model_type, result.version) == ("LlamaForCausalLM", "llama", "0.19.0")


SCHEMES: dict[str, tuple[Any, Any, str, str, str]] = {
    "int4": (tiny.group(), layers("m.x"), "pack-quantized", "wNa16_int", "cpu/int4"),
    "int4-asymmetric": (
        tiny.group({**tiny.INT4, "symmetric": False}), layers("m.x", symmetric=False), "pack-quantized", "wNa16_int",
        "cpu/int4"),
    "int4-channel": (
        tiny.group({**tiny.INT4, "strategy": "channel", "group_size": None}), layers("m.x", group=-1),
        "pack-quantized", "wNa16_int", "cpu/int4"),
    "int3": (
        tiny.group({**tiny.INT4, "num_bits": 3}), layers("m.x", bits=3), "pack-quantized", "wNa16_int", "reference"),
    "w8a16": (tiny.group(tiny.INT8), layers("m.x", make=tiny.int8), "int-quantized", "wNa16_int", "cpu/int8"),
    "w8a8": (
        tiny.group(tiny.INT8, tiny.INT8_TOKEN), layers("m.x", make=tiny.int8), "int-quantized", "wNa8_int", "cpu/int8"),
    "w4a8": (tiny.group(tiny.INT4, tiny.INT8_TOKEN), layers("m.x"), "pack-quantized", "wNa8_int", "reference"),
    "fp8": (
        tiny.group(tiny.FP8, tiny.FP8_TOKEN), layers("m.x", make=tiny.fp8), "float-quantized", "w8a8_fp8", "reference"),
    "fp8-weights": (tiny.group(tiny.FP8), layers("m.x", make=tiny.fp8), "float-quantized", "w8a16_fp8", "reference"),
    "fp8-naive": (
        tiny.group(tiny.FP8, tiny.FP8_TOKEN), layers("m.x", make=tiny.fp8), "naive-quantized", "w8a8_fp8", "reference"),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMES)
def test_schemes(tmp_path: Path, name: str) -> None:
    group, tensors, fmt, scheme, kernel = SCHEMES[name]
    result = plan(checkpoint(tmp_path, tiny.config(group, fmt=fmt, ignore=()), tensors))
    assert (result.layers["m.x"].scheme, result.layers["m.x"].kernel) == (scheme, kernel)


@pytest.mark.parametrize("name", ["int4", "w8a8", "fp8"])
def test_top_level_mixed_precision_is_read_from_the_tensors(tmp_path: Path, name: str) -> None:
    group, tensors, fmt, scheme, _ = SCHEMES[name]
    result = plan(checkpoint(tmp_path, tiny.config(group, fmt="mixed-precision", ignore=()), tensors))
    assert (result.layers["m.x"].format, result.layers["m.x"].scheme) == (fmt, scheme)
    assert "format-inferred" in codes(result)


def test_a_groups_own_format_beats_the_top_level_one(tmp_path: Path) -> None:
    mixed = tiny.config(
        tiny.group(targets=["re:.*mlp.*"], format="pack-quantized"),
        tiny.group(tiny.FP8, tiny.FP8_TOKEN, targets=["re:.*attn.*"], format="float-quantized"),
        fmt="mixed-precision", ignore=(),
    )  # fmt: skip
    tensors = {**layers(f"{MLP}.up_proj"), **layers(f"{ATTN}.q_proj", make=tiny.fp8)}
    result = plan(checkpoint(tmp_path, mixed, tensors))
    assert [layer.scheme for layer in result.layers.values()] == ["wNa16_int", "w8a8_fp8"]


KINDS = {
    "model.embed_tokens": "embedding",
    "transformer.wte": "embedding",
    "bert.embeddings.word_embeddings": "embedding",
    "lm_head": "lm_head",
    "model.lm_head": "lm_head",
    "output": "lm_head",
    "bert.layer.0.output": "linear",
    "model.layers.1.mlp.experts.17.up_proj": "moe",
    "model.layers.1.mlp.shared_experts.up_proj": "linear",
    "model.layers.1.mlp.gate": "linear",
    "model.layers.1.block_sparse_moe.experts.3.w1": "moe",
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds_by_name(tmp_path: Path, name: str) -> None:
    result = soft(tmp_path, tiny.config(tiny.group(targets=["nothing"]), ignore=()), tiny.dense(name))
    assert result.layers[name].kind == KINDS[name] and result.layers[name].scheme == "dense"


def test_what_is_never_quantized_has_no_entry_but_an_owner(tmp_path: Path) -> None:
    others = {
        "model.norm.weight": ("BF16", [64]), "visual.conv.weight": ("BF16", [8, 3, 4, 4]), "model.A_log": ("F32", [8]),
        "model.layers.0.mlp.experts.gate_up_proj": ("BF16", [4, 8, 8]), "logit_scale": ("F32", []),
    }  # fmt: skip
    result = plan(checkpoint(tmp_path, tiny.config(ignore=()), {**others, **layers("m.x")}))
    assert list(result.layers) == ["m.x"]


def test_modules_can_say_what_a_class_is(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, tiny.config(tiny.group(targets=["MyLinear"]), ignore=()), layers("m.x", "m.y"))
    result = plan(folder, modules={"m.x": ("MyLinear", "Linear"), "no.such": "Linear"}, strict=False)
    assert result.layers["m.x"].target == "MyLinear" and result.layers["m.x"].kernel == "cpu/int4"
    assert isinstance(error(result, "m.y"), CheckpointError)
    assert [p.where for p in result.problems if p.code == "unknown-module"] == ["no.such"]


def test_gpt2_projections_are_no_linears(tmp_path: Path) -> None:
    tensors = {**tiny.dense("transformer.h.0.mlp.c_fc"), **layers("lm_head")}
    config = tiny.config(ignore=(), model={"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]})
    assert list(plan(checkpoint(tmp_path, config, tensors)).layers) == ["lm_head"]


# -------------------------------------------------------------------------------------------- patterns


def test_patterns_that_match_nothing_are_reported(tmp_path: Path) -> None:
    config = tiny.config(
        tiny.group(targets=["Linear", "re:.*gone"]), ignore=["lm_head", "re:.*norm.*", "m.absent", "m"]
    )
    tensors = {**layers("m.x"), "m.norm.weight": ("BF16", [64]), **tiny.dense("lm_head")}
    result = plan(checkpoint(tmp_path, config, tensors))
    assert {(p.code, p.where) for p in result.problems} == {
        ("unmatched-target", "re:.*gone"), ("unmatched-ignore", "m.absent"),
    }  # fmt: skip


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_head_is_no_unmatched_entry(tmp_path: Path, tied: bool) -> None:
    tensors = {**layers("m.x"), **tiny.dense("model.embed_tokens")}
    result = plan(checkpoint(tmp_path, tiny.config(model={"tie_word_embeddings": tied}), tensors))
    assert codes(result) == (set() if tied else {"unmatched-ignore"}) and "lm_head" not in result.layers


def test_a_head_that_is_targeted_by_name_must_be_stored(tmp_path: Path) -> None:
    config = tiny.config(tiny.group(targets=["Linear", "lm_head"]), ignore=(), model={"tie_word_embeddings": True})
    found = error(soft(tmp_path, config, layers("m.x")), "lm_head")
    assert isinstance(found, CheckpointError) and "weight_packed" in str(found)


def test_where_engines_would_choose_another_group(tmp_path: Path) -> None:
    groups = [
        tiny.group({**tiny.INT4, "num_bits": 8}, targets=["re:m.*"]),
        tiny.group(targets=["re:.*x$"]),
    ]
    names = [f"m.{i}.x" for i in range(5)]
    result = plan(checkpoint(tmp_path, tiny.config(*groups, ignore=()), layers(*names)))
    assert {layer.group for layer in result.layers.values()} == {"group_1"}
    (problem,) = [p for p in result.problems if p.code == "engine-order"]
    assert "5 layers (m.0.x, m.1.x, m.2.x, ...) are taken by 're:.*x$' in group_1" in problem.message
    assert "'re:m.*' in group_0" in problem.message
