"""plan() on checkpoints: every module resolved, what config and tensors say about each other, and each kind of failure."""

from __future__ import annotations

import json
import os
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quantdispatch.registry import plan as plan_module
from quantdispatch.registry.errors import (
    CheckpointError,
    ConfigError,
    NoKernelFound,
    NoSchemeFound,
    PlanError,
    QuantDispatchError,
    UnreadableCheckpointError,
)
from quantdispatch.registry.kernels import Absent, Args, Kernel, Needs
from quantdispatch.registry.plan import Plan, plan
from quantdispatch.registry.registry import Registry
from quantdispatch.registry.rules import builtin_rules
from quantdispatch.registry.table import RuleTable

tiny = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "data" / "plan" / "tiny.py")))
ATTN, MLP = "model.layers.0.self_attn", "model.layers.0.mlp"
OUTSIDE = {**tiny.dense("model.embed_tokens"), **tiny.dense("lm_head"), "model.norm.weight": ("BF16", [64])}

# Kernels of these tests' own, so that what is tested here does not depend on what a backend can do.
KERNELS = (
    Kernel("cpu/int4", "linear", Needs({"k%32": 0, "n%16": 0}, device="cpu", weights=Args(type="int", num_bits={4}),
                                       inputs=Absent, outputs=Absent), "a:B", rank=5),
    Kernel("cpu/int8", "linear", Needs({"k%32": 0}, device="cpu", weights=Args(type="int", num_bits={8})), "a:B",
           deviations=("inputs stay unquantized",)),
    Kernel("reference", "linear", Needs(device={"cpu", "cuda"}, weights=Args(num_bits={2, 3, 4, 5, 6, 7, 8})), "a:B",
           slow=True),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry(RuleTable.build(builtin_rules()), KERNELS)
    monkeypatch.setattr(plan_module, "get_registry", lambda: registry)


def layers(*names: str, make: Any = tiny.int4, **options: Any) -> dict[str, Any]:
    return {key: value for name in names for key, value in make(name, **options).items()}


def checkpoint(path: Path, config: Any, tensors: Any, n: int = 64, k: int = 64) -> Path:
    return Path(tiny.folder(path / "c", config, tensors, tiny.shapes(tensors, n, k)))


def soft(path: Path, config: Any, tensors: Any, **options: Any) -> Plan:
    return plan(checkpoint(path, config, tensors), strict=False, **options)


def codes(result: Plan) -> set[str]:
    return {problem.code for problem in result.problems}


def error(result: Plan, name: str) -> QuantDispatchError:
    found = result.layers[name].error
    assert found is not None
    return found


# --------------------------------------------------------------------------------------------------- what resolves


def test_every_module_has_its_entry(tmp_path: Path) -> None:
    tensors = {**layers(f"{ATTN}.q_proj", f"{MLP}.down_proj"), **OUTSIDE, f"{ATTN}.q_proj.bias": ("BF16", [64])}
    result = plan(checkpoint(tmp_path, tiny.config(), tensors))
    assert list(result.layers) == ["lm_head", "model.embed_tokens", f"{MLP}.down_proj", f"{ATTN}.q_proj"]
    q = result.layers[f"{ATTN}.q_proj"]
    assert (q.kind, q.group, q.target, q.ignored_by, q.format) == ("linear", "group_0", "Linear", None, "pack-quantized")
    assert (q.scheme, q.backend, q.kernel, q.error) == ("wNa16_int", "cpu", "cpu/int4", None)
    assert q.rule is not None and q.rule.name == "wNa16_int" and q.inferred == "Linear, from its weight_packed"
    assert q.shape is not None and (q.shape.n, q.shape.k) == (64, 64) and set(q.tensors) > {"bias"}
    assert [c.kernel.name for c in q.trace.kernels] == ["cpu/int4", "cpu/int8", "reference"]
    assert q.equivalents["vllm"] == ("CompressedTensorsWNA16",)
    head, embedding = result.layers["lm_head"], result.layers["model.embed_tokens"]
    assert (head.kind, head.scheme, head.ignored_by, head.backend) == ("lm_head", "dense", "lm_head", "torch")
    assert (embedding.kind, embedding.scheme, embedding.ignored_by, embedding.group) == ("embedding", "dense", None, None)
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
    "int3": (tiny.group({**tiny.INT4, "num_bits": 3}), layers("m.x", bits=3), "pack-quantized", "wNa16_int", "reference"),
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


# ----------------------------------------------------------------------------------- stored tensors arbitrate: explained

MISMATCHES: dict[str, tuple[str, str, str]] = {
    # stored dense, ignore entry, mapping
    "prefix-added": ("model.visual.blocks.0.attn.qkv", "visual.blocks.0.attn.qkv", "* -> model.*"),
    "prefix-removed": ("visual.blocks.0.attn.qkv", "model.visual.blocks.0.attn.qkv", "model.* -> *"),
    "prefix-changed": ("model.language_model.layers.3.mlp.gate", "language_model.model.layers.3.mlp.gate",
                       "language_model.model.* -> model.language_model.*"),
    "suffix-style": ("model.layers.7.mlp.gate", "mlp.gate", "* -> model.layers.7.*"),
    "head": ("language_model.lm_head", "lm_head", "* -> language_model.*"),
    "tensor-name": ("model.layers.7.mlp.gate", "model.layers.7.mlp.gate.weight", "model.layers.7.mlp.gate.weight -> "),
    "wrapped": ("vision.blocks.0.q.linear", "vision.blocks.0.q", "vision.blocks.0.q -> "),
    "parent": ("vision_tower.blocks.0.fc1", "vision_tower", "vision_tower -> vision_tower.*"),
    "regex": ("model.visual.blocks.0.fc1", "re:visual.*", "with another prefix"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISMATCHES)
def test_namespace_mismatch(tmp_path: Path, name: str) -> None:
    stored, entry, how = MISMATCHES[name]
    result = plan(checkpoint(tmp_path, tiny.config(ignore=[entry]), {**tiny.dense(stored), **layers("m.x")}))
    layer = result.layers[stored]
    assert (layer.scheme, layer.ignored_by, layer.weights, layer.error) == ("dense", entry, None, None)
    (problem,) = [p for p in result.problems if p.code == "namespace-mismatch"]
    assert how in problem.message and stored in problem.message and "unmatched-ignore" not in codes(result)
    assert result.layers["m.x"].scheme == "wNa16_int"


def test_mismatches_of_one_mapping_are_one_problem(tmp_path: Path) -> None:
    stored = [f"visual.blocks.{i}.fc1" for i in range(9)]
    result = soft(tmp_path, tiny.config(ignore=[f"model.{n}" for n in stored]), layers(*stored, make=tiny.dense))
    assert [p.code for p in result.problems] == ["namespace-mismatch"] and "9 layers" in str(result.problems[0])


@pytest.mark.parametrize(
    "entry", ["model.layers.8.mlp.gate", "re:.*router.*", "gate_proj", "model.layers.1.mlp.gate", "layers.17.mlp.gate"]
)
def test_an_entry_for_something_else_explains_nothing(tmp_path: Path, entry: str) -> None:
    name = "model.layers.7.mlp.gate"
    result = soft(tmp_path, tiny.config(ignore=[entry]), tiny.dense(name))
    assert isinstance(error(result, name), CheckpointError)
    assert {"unmatched-ignore"} == codes(result)
    assert "weight (BF16 [64, 64])" in str(error(result, name)) and "stored dense" in str(error(result, name))


# --------------------------------------------------------------------------------- stored tensors arbitrate: contradicted


def packed_with(**changes: Any) -> dict[str, Any]:
    tensors = {f"m.x.{k}" if "." not in k else k: v for k, v in changes.items()}
    merged = {**layers("m.x"), **tensors}
    return {name: value for name, value in merged.items() if value is not None}


CONTRADICTIONS: dict[str, tuple[Any, Any, tuple[str, ...]]] = {
    "ignored-but-quantized": (
        tiny.config(ignore=["m.x"]), layers("m.x"), ("ignores it by 'm.x'", "weight_packed (I32 [64, 8])", "weight_scale")),
    "unmatched-but-quantized": (
        tiny.config(tiny.group(targets=["re:other"])), layers("m.x"), ("no target of the config matches", "weight_packed")),
    "dense-with-fp8-weight": (
        tiny.config(ignore=["m.x"]), {"m.x.weight": ("F8_E4M3", [64, 64])}, ("weight (F8_E4M3",)),
    "matched-but-dense": (tiny.config(), tiny.dense("m.x"), ("group_0", "int4 symmetric, group 32", "weight (BF16")),
    "packed-planned-fp8-stored": (tiny.config(), layers("m.x", make=tiny.fp8), ("weight_packed", "wNa16_int")),
    "packed-planned-int8-stored": (tiny.config(), layers("m.x", make=tiny.int8), ("weight_packed",)),
    "missing-scale": (tiny.config(), packed_with(weight_scale=None), ("weight_scale",)),
    "missing-zero-point": (
        tiny.config(tiny.group({**tiny.INT4, "symmetric": False})), layers("m.x"), ("weight_zero_point",)),
    "left-over-zero-point": (tiny.config(), layers("m.x", symmetric=False), ("no use for", "weight_zero_point (I32")),
    "left-over-weight": (tiny.config(), packed_with(weight=("BF16", [64, 64])), ("no use for", "weight (BF16")),
    "left-over-unknown": (tiny.config(), packed_with(something=("BF16", [4])), ("no use for", "something (BF16 [4])")),
    "wrong-scale-shape": (tiny.config(), packed_with(weight_scale=("BF16", [64, 3])), ("weight_scale", "[64, 3]")),
    "wrong-dtype": (tiny.config(), packed_with(weight_packed=("I64", [64, 8])), ("weight_packed", "I64", "I32")),
    "wrong-bias": (tiny.config(), packed_with(bias=("BF16", [63])), ("bias", "[63]", "[64]")),
    "other-bits": (tiny.config(tiny.group({**tiny.INT4, "num_bits": 8})), layers("m.x"), ("weight_packed",)),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradiction(tmp_path: Path, name: str) -> None:
    config, tensors, words = CONTRADICTIONS[name]
    folder = checkpoint(tmp_path, config, tensors)
    result = plan(folder, strict=False)
    found = error(result, "m.x")
    assert isinstance(found, CheckpointError) and not isinstance(found, UnreadableCheckpointError)
    assert found.exit_code == 1 and found.layer == "m.x" and found.field
    assert all(word in str(found) for word in words), str(found)
    with pytest.raises(PlanError) as caught:
        plan(folder)
    assert [str(e) for e in caught.value.errors] == [str(found)]


@pytest.mark.parametrize(
    ("extra", "owner"),
    [
        ({"m.norm.weight": ("BF16", [64]), "m.norm.weight_scale": ("BF16", [1])}, "m.norm"),
        ({"conv.weight": ("I8", [4, 3, 2, 2])}, "conv"),
        ({"m.y.weight_scale": ("BF16", [64, 1])}, "m.y"),
        ({"m.experts.up_packed": ("I32", [4, 8, 2])}, "m.experts"),
        ({"m.experts.up": ("U8", [4, 8, 2]), "m.experts.up_scale": ("U8", [4, 8, 1])}, "m.experts"),
        ({"model.layers.0.self_attn.k_scale": ("F32", [1])}, "model.layers.0.self_attn"),
    ],
)
def test_a_quantized_tensor_without_a_layer_is_an_error(tmp_path: Path, extra: Any, owner: str) -> None:
    result = soft(tmp_path, tiny.config(ignore=()), {**layers("m.x"), **extra})
    assert list(result.errors) == [error(result, owner)] and isinstance(result.errors[0], CheckpointError)
    assert list(extra)[-1].rpartition(".")[2] in str(result.errors[0])


def test_group_that_does_not_divide_k(tmp_path: Path) -> None:
    config = tiny.config(tiny.group({**tiny.INT4, "group_size": 48}))
    folder = checkpoint(tmp_path, config, packed_with(weight_scale=("BF16", [64, 1])))
    found = error(plan(folder, strict=False), "m.x")
    assert isinstance(found, CheckpointError) and "48" in str(found) and "64" in str(found)


def test_mixed_precision_that_tensors_do_not_tell(tmp_path: Path) -> None:
    tensors = {"m.x.weight": ("U8", [64, 32]), "m.x.weight_scale": ("U8", [64, 2])}
    result = soft(tmp_path, tiny.config(fmt="mixed-precision"), tensors)
    assert isinstance(error(result, "m.x"), ConfigError)
    assert error(result, "m.x").field == "quantization_config.config_groups.group_0.format"


# ------------------------------------------------------------------------------------------------------------ patterns


def test_patterns_that_match_nothing_are_reported(tmp_path: Path) -> None:
    config = tiny.config(tiny.group(targets=["Linear", "re:.*gone"]), ignore=["lm_head", "re:.*norm.*", "m.absent", "m"])
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


# ------------------------------------------------------------------------------------------------------------ failures


def test_a_miss_names_layer_args_format_rules_and_remedy(tmp_path: Path) -> None:
    names = [f"model.layers.{i}.mlp.up_proj" for i in range(4)]
    tensors = {f"{n}.{t}": v for n in names for t, v in {"weight_packed": ("U8", [64, 32]), "weight_scale": ("U8", [64, 2])}.items()}  # noqa: E501
    fp4 = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
    config = tiny.config(tiny.group(fp4), fmt="mxfp4-pack-quantized")
    folder = checkpoint(tmp_path, config, {**tensors, **OUTSIDE})
    with pytest.raises(PlanError) as caught:
        plan(folder)
    assert len(caught.value.errors) == 4 and caught.value.exit_code == 1
    text = str(caught.value)
    assert "4 of 6 layers do not resolve" in text and "3 more layers fail alike" in text and "\n" not in text
    for name, found in zip(names, caught.value.errors, strict=True):
        assert isinstance(found, NoSchemeFound) and found.layer == name and len(found.nearest) == 3
        assert all(word in str(found) for word in (name, "fp4", "mxfp4-pack-quantized", "would resolve as"))
        assert all(c.mismatches and c.rule.name in str(c) and "requires" in str(c) for c in found.nearest)
    shown = plan(folder, strict=False).to_json()["layers"][2]["error"]
    assert set(shown) == {"type", "message", "nearest"} and shown["type"] == "NoSchemeFound" and len(shown["nearest"]) == 3


def test_no_kernel_names_each_with_its_reason(tmp_path: Path) -> None:
    result = soft(tmp_path, tiny.config(), layers("m.x"), device="rocm:gfx942")
    found, layer = error(result, "m.x"), result.layers["m.x"]
    assert isinstance(found, NoKernelFound) and len(found.nearest) == 3 and layer.scheme == "wNa16_int"
    assert all(kernel.name in str(found) for kernel in KERNELS) and "device is rocm" in str(found)
    assert (layer.kernel, layer.backend) == (None, None)


def test_kernels_by_device_and_backend(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, tiny.config(), layers("m.x"))
    assert plan(folder, device="cuda:sm90").layers["m.x"].kernel == "reference"
    assert plan(folder, backend="reference").layers["m.x"].kernel == "reference"
    w8 = checkpoint(tmp_path / "w8", tiny.config(tiny.group(tiny.INT8), fmt="int-quantized"), tiny.int8("m.x"))
    assert plan(w8).layers["m.x"].deviations == ("inputs stay unquantized",)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"device": "tpu"}, "device"),
        ({"dtype": "int8"}, "dtype"),
        ({"tensor_parallel": 0}, "tensor_parallel"),
        ({"tensor_parallel": True}, "tensor_parallel"),
        ({"modules": {"m.x": 3}}, "modules"),
        ({"modules": {"m.x": ()}}, "modules"),
        ({"environment": {"no such fact": 1}}, "environment"),
    ],
)
def test_bad_arguments(tmp_path: Path, options: Any, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(checkpoint(tmp_path, tiny.config(), layers("m.x")), **options)
    assert caught.value.field == field and caught.value.exit_code == 2


def test_several_kinds_of_failure_in_one_line(tmp_path: Path) -> None:
    tensors = {**layers("m.x", make=tiny.fp8), **layers("m.y", symmetric=False)}
    with pytest.raises(PlanError, match="2 of 2 layers do not resolve: m.x: .*1 other kinds of failure"):
        plan(checkpoint(tmp_path, tiny.config(), tensors))


# ----------------------------------------------------------------------------------- kv cache, attention and transforms

FP8_CACHE = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}


def attention_tensors(**scales: Any) -> dict[str, Any]:
    projections = layers(*(f"{ATTN}.{p}_proj" for p in "qkvo"))
    return {**projections, **{f"{ATTN}.{name}": ("F32", [1]) for name in scales}, **tiny.dense("visual.0.attn.qkv_proj")}


@pytest.mark.parametrize("scales", [(), ("k_scale", "v_scale"), ("k_proj.output_scale", "v_proj.output_scale")])
def test_kv_cache_has_one_entry_an_attention_module(tmp_path: Path, scales: tuple[str, ...]) -> None:
    config = tiny.config(kv_cache_scheme=FP8_CACHE, ignore=["re:visual.*"])
    result = soft(tmp_path, config, attention_tensors(**dict.fromkeys(scales)))
    caches = [layer for layer in result.layers.values() if layer.kind == "kv_cache"]
    assert [cache.name for cache in caches] == [ATTN] and set(caches[0].tensors) == set(scales)
    assert caches[0].classes == ("LlamaAttention",) and caches[0].inputs is not None
    assert isinstance(caches[0].error, NoSchemeFound) and "kv_cache_scheme" in str(caches[0].error)
    assert len(caches[0].error.nearest) == 3
    assert list(result.errors) == [caches[0].error]


@pytest.mark.parametrize("target", ["LlamaAttention", "re:.*self_attn$", ATTN])
def test_groups_that_target_attention(tmp_path: Path, target: str) -> None:
    config = tiny.config(tiny.group(), tiny.group(None, FP8_CACHE, targets=[target]), ignore=["re:visual.*"])
    result = soft(tmp_path, config, attention_tensors())
    layer = result.layers[ATTN]
    assert (layer.kind, layer.group, layer.target) == ("attention", "group_1", target)
    assert isinstance(layer.error, NoSchemeFound) and not any(p.code == "unmatched-target" for p in result.problems)


def test_a_pattern_that_hits_the_projections_too_does_not_mean_attention(tmp_path: Path) -> None:
    config = tiny.config(tiny.group(targets=["re:.*self_attn.*"]), ignore=["re:visual.*"])
    assert ATTN not in plan(checkpoint(tmp_path, config, attention_tensors())).layers


def transform(location: str, targets: Any = ("Linear",), ignore: Any = ()) -> Any:
    apply = [{"targets": list(targets), "location": location, "ignore": list(ignore)}]
    return {"config_groups": {"R3": {"type": "hadamard", "apply": apply}}}


def test_transforms_at_run_time_are_not_lost(tmp_path: Path) -> None:
    config = tiny.config(transform_config=transform("input", ignore=["re:.*k_proj"]), ignore=["re:visual.*"])
    result = soft(tmp_path, config, attention_tensors())
    failing = {layer.name: layer.error for layer in result.layers.values() if layer.error}
    assert set(failing) == {f"{ATTN}.{p}_proj" for p in "qvo"} | {"visual.0.attn.qkv_proj"}
    assert all(isinstance(e, NoSchemeFound) and "transform_config" in str(e) for e in failing.values())
    assert result.config.transform_config and "R3 at input" in str(failing[f"{ATTN}.q_proj"])


def test_transforms_of_attention(tmp_path: Path) -> None:
    config = tiny.config(transform_config=transform("q_attn", ["re:.*self_attn$"]), ignore=["re:visual.*"])
    result = soft(tmp_path, config, attention_tensors())
    assert [layer.name for layer in result.layers.values() if layer.error] == [ATTN]


def test_transforms_of_weights_were_done_by_the_writer(tmp_path: Path) -> None:
    config = tiny.config(transform_config=transform("weight_input"), ignore=["re:visual.*"])
    result = plan(checkpoint(tmp_path, config, attention_tensors()))
    assert codes(result) == {"transform-offline"}


@pytest.mark.parametrize(
    "bad", [{"config_groups": {"R": 3}}, {"config_groups": {"R": {"apply": 3}}}, {"other": 1}, transform("nowhere")]
)
def test_transforms_that_cannot_be_read(tmp_path: Path, bad: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(checkpoint(tmp_path, tiny.config(transform_config=bad), layers("m.x")))
    assert "transform_config" in str(caught.value) and caught.value.exit_code == 2


# ---------------------------------------------------------------------------------------------------- tensor parallelism


@pytest.mark.parametrize(
    ("name", "degree", "expected"),
    [
        ("q_proj", 2, (64, 128)), ("q_proj", 4, (32, 128)), ("o_proj", 2, (128, 64)), ("o_proj", 4, (128, 32)),
        ("gate", 4, (128, 128)), ("o_proj", 8, "the largest tensor_parallel that fits this layer is 4"),
        ("q_proj", 3, "the largest tensor_parallel that fits this layer is 2"),
        ("q_proj", 256, "the largest tensor_parallel that fits this layer is 128"),
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


# ----------------------------------------------------------------------------------------------------------- plan as data


def test_json_is_complete_and_stable(tmp_path: Path) -> None:
    tensors = {**layers(f"{ATTN}.q_proj", *(f"model.layers.{i}.mlp.up_proj" for i in (10, 2))), **OUTSIDE}
    folder = checkpoint(tmp_path, tiny.config(unknown_thing=1), tensors)
    first, second = (json.dumps(plan(folder).to_json()) for _ in range(2))
    data = json.loads(first)
    assert first == second and data["version"] == 1 and data["device"] == "cpu"
    names = [layer["name"] for layer in data["layers"]]
    assert names.index("model.layers.2.mlp.up_proj") < names.index("model.layers.10.mlp.up_proj")
    contract = {
        "name", "kind", "group", "target", "ignored_by", "weights", "inputs", "outputs", "format", "rule", "scheme",
        "backend", "kernel", "deviations", "equivalents", "differs", "trace", "error",
    }  # fmt: skip
    assert all(contract <= set(layer) for layer in data["layers"])
    dense = next(layer for layer in data["layers"] if layer["name"] == "lm_head")
    assert (dense["scheme"], dense["ignored_by"], dense["weights"], dense["error"]) == ("dense", "lm_head", None, None)
    assert {"code", "message"} <= set(data["problems"][0]) and data["problems"][0]["code"] == "unknown-key"


def test_summary_puts_alike_layers_together(tmp_path: Path) -> None:
    names = [f"model.layers.{i}.mlp.up_proj" for i in range(12)]
    tensors = {**layers(*names), **layers("model.layers.0.mlp.down_proj", n=32, k=64), **OUTSIDE}
    config = tiny.config()
    folder = tiny.folder(tmp_path / "c", config, tensors, {
        name: tiny.shape_bytes(32 if "down" in name else 64) for name in tensors if name.endswith("weight_shape")
    })  # fmt: skip
    groups = plan(folder).summary
    assert [len(group.names) for group in groups] == [1, 1, 13] and groups[2].names[-1] == names[-1]


def test_no_tensor_library_is_imported(tmp_path: Path) -> None:
    import subprocess
    import sys

    folder = checkpoint(tmp_path, tiny.config(), layers("m.x"))
    code = (
        "import sys; from quantdispatch.registry.plan import plan; plan(sys.argv[1], strict=False); "
        "print([m for m in ('torch', 'transformers', 'numpy', 'safetensors', 'huggingface_hub') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr


def test_many_layers_take_little_time(tmp_path: Path) -> None:
    """A signature is decided once: ten times the layers must not take a hundred times as long (wall time is not tested)."""
    names = [f"model.layers.{i}.mlp.experts.{e}.up_proj" for i in range(20) for e in range(50)]
    folder = checkpoint(tmp_path, tiny.config(tiny.group(targets=["re:.*"]), ignore=()), layers(*names))
    result = plan(folder, strict=False)
    assert len(result.layers) == 1000
    assert len({id(layer.trace) for layer in result.layers.values()}) == 1
    assert [layer.error.layer for layer in result.layers.values() if layer.error] in ([], names)


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda p: p / "gone", UnreadableCheckpointError, "no file or folder"),
        (lambda p: "a\0b", UnreadableCheckpointError, "not a path"),
        (lambda p: write(p / "x.json", "[1"), ConfigError, "not JSON"),
        (lambda p: write(p / "x.json", "3"), ConfigError, "no JSON object"),
        (lambda p: write(p / "x.json", "{}"), ConfigError, "no quantization_config"),
        (lambda p: {"model_type": "llama"}, ConfigError, "no quantization_config"),
        (lambda p: {"quantization_config": {"quant_method": "awq", "bits": 4}}, ConfigError, "awq"),
        (lambda p: write(p / "x.bin", "\x80\x02"), ConfigError, "x.bin"),
        (lambda p: os.mkdir(p / "empty") or p / "empty", ConfigError, "no config.json"),
    ],
)
def test_sources_that_cannot_be_read(tmp_path: Path, make: Any, kind: type[QuantDispatchError], words: str) -> None:
    with pytest.raises(kind) as caught:
        plan(make(tmp_path))
    assert words in str(caught.value) and caught.value.exit_code == 2 and "\n" not in str(caught.value)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="latin-1")
    return path
