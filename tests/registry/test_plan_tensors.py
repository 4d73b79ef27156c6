"""Where config and stored tensors speak of the same layer, the tensors decide, and what they decide is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_plans as tiny
from planning import ATTN, MLP, OUTSIDE, codes, error, soft, tiny_registry  # noqa: F401
from tiny_plans import checkpoint, layers

from quantdispatch.registry.arbitration import Namespaces
from quantdispatch.registry.errors import (
    CheckpointError,
    ConfigError,
    PlanError,
    UnreadableCheckpointError,
)
from quantdispatch.registry.plan import plan
from quantdispatch.registry.targets import TargetIndex

# ----------------------------------------------------------------- stored tensors arbitrate: explained

MISMATCHES: dict[str, tuple[str, str, str]] = {
    # stored dense, ignore entry, mapping
    "prefix-added": ("model.visual.blocks.0.attn.qkv", "visual.blocks.0.attn.qkv", "* -> model.*"),
    "prefix-removed": ("visual.blocks.0.attn.qkv", "model.visual.blocks.0.attn.qkv", "model.* -> *"),
    "prefix-changed": ("model.language_model.layers.3.mlp.gate", "language_model.model.layers.3.mlp.gate",
                       "language_model.model.* -> model.language_model.*"),
    "suffix-style": ("model.layers.7.mlp.gate", "mlp.gate", "* -> model.layers.7.*"),
    "head": ("language_model.lm_head", "lm_head", "* -> language_model.*"),
    "head-renamed": ("embed_out", "lm_head", "lm_head.* -> embed_out.*"),
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
    "entry", ["model.layers.8.mlp.gate", "re:.*router.*", "gate_proj", "layers.17.mlp.gate", "visual.layers.7.mlp.gate"]
)
def test_an_entry_for_something_else_explains_nothing(tmp_path: Path, entry: str) -> None:
    name = "model.layers.7.mlp.gate"
    result = soft(tmp_path, tiny.config(ignore=[entry]), tiny.dense(name))
    assert isinstance(error(result, name), CheckpointError)
    assert {"unmatched-ignore"} == codes(result)
    assert "weight (BF16 [64, 64])" in str(error(result, name)) and "stored dense" in str(error(result, name))


# -------------------------------------------------------------- stored tensors arbitrate: contradicted


def packed_with(**changes: Any) -> dict[str, Any]:
    tensors = {f"m.x.{k}" if "." not in k else k: v for k, v in changes.items()}
    merged = {**layers("m.x"), **tensors}
    return {name: value for name, value in merged.items() if value is not None}


CONTRADICTIONS: dict[str, tuple[Any, Any, tuple[str, ...]]] = {
    "ignored-but-quantized": (
        tiny.config(ignore=["m.x"]), layers("m.x"),
        ("ignores it by 'm.x'", "weight_packed (I32 [64, 8])", "weight_scale")),
    "unmatched-but-quantized": (
        tiny.config(tiny.group(targets=["re:other"])), layers("m.x"),
        ("no target of the config matches", "weight_packed")),
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
    "left-over-cache-scale": (tiny.config(), packed_with(k_scale=("F32", [1])), ("no use for", "k_scale (F32 [1])")),
    "missing-weight": (tiny.config(), packed_with(weight_packed=None), ("weight_packed is missing", "weight_shape")),
    "bytes-for-words": (tiny.config(), packed_with(weight_packed=("U8", [64, 32])), ("wrong dtype", "U8", "I32")),
    "empty-weight": (tiny.config(), packed_with(weight_packed=("I32", [0, 8])), ("weight_packed is empty",)),
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


@pytest.mark.parametrize("wrong", ["m.a", "m.b"])
def test_a_layer_does_not_answer_for_the_weight_shape_of_another(tmp_path: Path, wrong: str) -> None:
    tensors = layers("m.a", "m.b")
    data = {**tiny.shapes(tensors), f"{wrong}.weight_shape": tiny.shape_bytes(64, 32)}
    result = plan(tiny.folder(tmp_path / "c", tiny.config(), tensors, data), strict=False)
    assert [e.layer for e in result.errors] == [wrong] and "fits 32 columns" in str(result.errors[0])


def test_layers_of_equal_headers_and_different_k(tmp_path: Path) -> None:
    tensors = layers("m.a", "m.b", group=-1)
    data = {**tiny.shapes(tensors), "m.b.weight_shape": tiny.shape_bytes(64, 63)}
    config = tiny.config(tiny.group({**tiny.INT4, "strategy": "channel", "group_size": None}))
    result = plan(tiny.folder(tmp_path / "c", config, tensors, data))
    assert [layer.shape.k for layer in result.layers.values()] == [64, 63]


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


def test_entries_explain_the_modules_that_they_fit_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regular expressions that tell numbers apart, and ones that do not, of which few names need to be asked about."""
    names = [f"model.visual.blocks.{i}.attn" for i in range(120)] + [
        "model.visual.merger",
        "vis.ual",
        "модель.visual.x",
    ]
    seeing = Namespaces([r"re:blocks\.1\.attn", r"re:blocks\.1[24]\.attn", r"re:model\.language_model\.vis\.ual$"])
    one, two = (seeing.explain(names), {k: v for name in names for k, v in seeing.explain([name]).items()})
    assert one == two and set(one) == {f"model.visual.blocks.{i}.attn" for i in (1, 12, 14)} | {"vis.ual"}
    asked: list[str] = []
    match_many = TargetIndex.match_many
    monkeypatch.setattr(TargetIndex, "match_many", lambda *given: (asked.extend(given[1]), match_many(*given))[1])
    blind = Namespaces(["re:blocks.*", "re:nothing.*"])
    assert blind.explain(names) == dict.fromkeys(names[:120], "re:blocks.*")
    assert len(asked) < 300
