"""Transforms in plans: which module has which, whose the stored matrices are, and what cannot be applied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_plans as tiny
from planning import ATTN, MLP, codes, error, soft, tiny_registry  # noqa: F401
from tiny_plans import checkpoint, layers

from quantdispatch.registry.errors import CheckpointError, ConfigError, NoKernelFound
from quantdispatch.registry.plan import plan
from quantdispatch.registry.transforms import Transforms

IGNORE = ["re:visual.*"]


def attention_tensors() -> dict[str, Any]:
    return {**layers(*(f"{ATTN}.{p}_proj" for p in "qkvo")), **tiny.dense("visual.0.attn.qkv_proj")}


def transform(location: str = "input", targets: Any = ("Linear",), ignore: Any = (), **scheme: Any) -> Any:
    inverse = {"inverse": scheme.pop("inverse")} if "inverse" in scheme else {}
    apply = [{"targets": list(targets), "location": location, "ignore": list(ignore), **inverse}]
    return {"config_groups": {"R3": {"type": "hadamard", "apply": apply, **scheme}}}


def test_every_layer_that_is_transformed_says_so(tmp_path: Path) -> None:
    config = tiny.config(transform_config=transform(ignore=["re:.*k_proj"]), ignore=IGNORE)
    result = soft(tmp_path, config, attention_tensors())
    transformed = {layer.name for layer in result.layers.values() if layer.transforms}
    assert transformed == {f"{ATTN}.{p}_proj" for p in "qvo"} | {"visual.0.attn.qkv_proj"} and not result.errors


def test_a_transformed_layer_is_what_it_would_be_without(tmp_path: Path) -> None:
    tensors = attention_tensors()
    config = tiny.config(transform_config=transform(targets=["re:.*q_proj"]), ignore=IGNORE)
    result = soft(tmp_path / "with", config, tensors)
    without = plan(checkpoint(tmp_path / "without", tiny.config(ignore=IGNORE), tensors))
    layer, bare = result.layers[f"{ATTN}.q_proj"], without.layers[f"{ATTN}.q_proj"]
    assert layer.transforms == ("R3 at input (hadamard)",) and bare.transforms == () and layer.kernel
    # engines differ over transforms, so what they run in place of it does too
    engines = {"differs": {}, "equivalents": {}}
    ours, theirs = ({**found.to_json(), "transforms": [], **engines} for found in (layer, bare))
    assert ours == theirs
    assert layer.to_json()["transforms"] == ["R3 at input (hadamard)"] and layer.deviations == bare.deviations
    assert result.layers[f"{ATTN}.k_proj"].to_json() == without.layers[f"{ATTN}.k_proj"].to_json()


def test_a_layer_left_dense_is_transformed_too(tmp_path: Path) -> None:
    config = tiny.config(transform_config=transform("output", ["re:visual.*_proj"]), ignore=IGNORE)
    layer = soft(tmp_path, config, attention_tensors()).layers["visual.0.attn.qkv_proj"]
    assert layer.error is None and (layer.scheme, layer.backend) == ("dense", "torch") and layer.transforms


@pytest.mark.parametrize(
    ("options", "label"),
    [
        ({}, "R3 at input (hadamard)"),
        ({"type": "random-hadamard", "head_dim": 128}, "R3 at input (random-hadamard, size 128)"),
        ({"type": "random-matrix", "randomize": True, "inverse": True}, "R3 at input (random-matrix, random, inverse)"),
        ({"randomize": False, "head_dim": None, "inverse": False}, "R3 at input (hadamard)"),
        ({"randomize": None}, "R3 at input (hadamard)"),
    ],
)
def test_transforms_are_said_in_words(tmp_path: Path, options: Any, label: str) -> None:
    result = soft(tmp_path, tiny.config(transform_config=transform(**options)), layers("m.x"))
    assert result.layers["m.x"].transforms == (label,)


def test_a_single_target_needs_no_list(tmp_path: Path) -> None:
    config = transform()
    config["config_groups"]["R3"]["apply"][0]["targets"] = "Linear"
    assert soft(tmp_path, tiny.config(transform_config=config), layers("m.x")).layers["m.x"].transforms


def test_inputs_run_last_first_and_outputs_first_first() -> None:
    def entry(location: str, inverse: bool = False) -> dict[str, Any]:
        return {"targets": ["Linear"], "location": location, "inverse": inverse}

    groups = {
        "a": {"type": "hadamard", "apply": [entry("output"), entry("input"), entry("input", True), entry("q_attn")]},
        "b": {"type": "hadamard", "apply": [entry("input"), entry("output")]},
    }
    transforms = Transforms({"config_groups": groups})
    running = transforms.running(transforms.online("m", ("Linear",)))
    names = [(transform.module, transform.inverses) for transform in running]
    assert names == [
        ("b_input", (False,)), ("a_input", (True, False)), ("a_output", (False,)), ("b_output", (False,)),
        ("a_q_attn", (False,)),
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------- stored matrices


def matrix(name: str, size: int = 64, dtype: str = "F32", perm: bool = False) -> dict[str, Any]:
    return {f"{name}.weight": (dtype, [size, size]), **({f"{name}.perm": ("I64", [size])} if perm else {})}


@pytest.mark.parametrize("options", [
    {}, {"type": "random-hadamard"}, {"type": "random-matrix"}, {"randomize": True},
    {"type": "random-hadamard", "randomize": True},
])  # fmt: skip
@pytest.mark.parametrize("location", ["input", "output"])
def test_a_matrix_stored_once_serves_all_layers_of_its_size(tmp_path: Path, options: Any, location: str) -> None:
    perm = options.get("randomize", False)
    config = tiny.config(transform_config=transform(location, **options), ignore=())
    tensors = {**layers("m.x", "m.y"), **matrix(f"m.y.R3_{location}", perm=perm)}
    result = plan(checkpoint(tmp_path, config, tensors))
    assert set(result.layers) == {"m.x", "m.y"} and codes(result) == set()
    own = {name for name in result.layers["m.y"].tensors if "." in name}
    assert own == {f"R3_{location}.weight", *([f"R3_{location}.perm"] if perm else [])}
    entry = result.layers["m.y"].tensors[f"R3_{location}.weight"]
    assert list(entry.shape) == [64, 64] and entry.file.endswith("model.safetensors")
    assert not any("." in name for name in result.layers["m.x"].tensors)


BAD_MATRICES: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({"type": "random-hadamard"}, {}, "R3_input.weight", "no other layer stores R3's weight of size 64"),
    ({"type": "random-matrix"}, {}, "R3_input.weight", "is missing"),
    ({"randomize": True}, {}, "R3_input.perm", "is missing"),
    ({"randomize": True}, matrix("m.y.R3_input"), "R3_input.perm", "is missing"),
    ({"type": "random-hadamard"}, matrix("m.x.R3_input", 32), "R3_input.weight", "does not fit"),
    ({"head_dim": 32}, matrix("m.x.R3_input"), "R3_input.weight", "required F16 | BF16 | F32 | F64 [32, 32]"),
    ({}, matrix("m.x.R3_input", dtype="I32"), "R3_input.weight", "does not fit"),
    ({}, {"m.x.R3_input.weight": ("F32", [64])}, "R3_input.weight", "does not fit"),
    ({}, matrix("m.x.R3_input", perm=True), "R3_input.perm", "has no use for"),
    ({"type": "random-matrix", "randomize": True}, matrix("m.x.R3_input", perm=True), "R3_input.perm", "no use for"),
    ({}, {"m.x.R3_input.bias": ("F32", [64])}, "R3_input.bias", "has no use for"),
]


@pytest.mark.parametrize(("options", "tensors", "field", "words"), BAD_MATRICES)
def test_matrices_that_do_not_fit(tmp_path: Path, options: Any, tensors: Any, field: str, words: str) -> None:
    config = tiny.config(transform_config=transform(**options))
    found = error(soft(tmp_path, config, {**layers("m.x", "m.y"), **tensors}), "m.x")
    assert isinstance(found, CheckpointError) and found.field == field and words in str(found), found


def test_a_random_matrix_is_not_its_inverse(tmp_path: Path) -> None:
    config = transform(type="random-matrix", targets=["m.x"])
    config["config_groups"]["R3"]["apply"].append({"targets": ["m.y"], "location": "input", "inverse": True})
    tensors = {**layers("m.x", "m.y"), **matrix("m.x.R3_input")}
    result = soft(tmp_path, tiny.config(transform_config=config), tensors)
    assert result.layers["m.x"].error is None and isinstance(error(result, "m.y"), CheckpointError)


def test_matrices_that_the_config_does_not_speak_of_are_left_over(tmp_path: Path) -> None:
    for number, config in enumerate((tiny.config(), tiny.config(transform_config=transform(targets=["m.other"])))):
        result = soft(tmp_path / str(number), config, {**layers("m.x"), **matrix("m.x.R3_input")})
        assert isinstance(error(result, "m.x.R3_input"), CheckpointError)


def test_what_is_wrong_before_the_transform_is_said_first(tmp_path: Path) -> None:
    config = tiny.config(transform_config=transform("output", head_dim=7))
    found = error(soft(tmp_path, config, {**layers("m.x"), "m.x.odd_scale": ("BF16", [1])}), "m.x")
    assert isinstance(found, CheckpointError) and "odd_scale" in str(found)


# ---------------------------------------------------------------------------------------- what cannot be applied

UNSUPPORTED: list[tuple[Any, str, str]] = [
    (transform("q_attn", ["re:.*self_attn$"]), ATTN, "at the q_attn of this attention"),
    (transform("k_cache", ["re:.*self_attn$"]), ATTN, "at the k_cache of this attention"),
    (transform("input", [ATTN]), ATTN, "at the input of this attention"),
    (transform("q_attn", ["re:.*q_proj$"]), f"{ATTN}.q_proj", "at the q_attn of this linear layer"),
    (transform("output", ["Embedding"]), "model.embed_tokens", "at the output of this embedding"),
    (transform("input", ["model.embed_tokens"]), "model.embed_tokens", "at the input of this embedding"),
    (transform("input", ["re:.*norm$"], head_dim=32), "model.norm", "module without a weight matrix"),
    (transform("input", ["re:.*mlp$"], head_dim=32), MLP, "module without a weight matrix"),
    (transform("output", [ATTN], head_dim=32), ATTN, "at the output of this attention"),
    (transform("k_cache", ["model.layers.0"], head_dim=32), "model.layers.0", "module without a weight matrix"),
    (transform("input", ["lm_head"]), "lm_head", "module without a weight matrix"),
]


@pytest.mark.parametrize(("config", "name", "words"), UNSUPPORTED)
def test_places_where_nothing_is_applied(tmp_path: Path, config: Any, name: str, words: str) -> None:
    tensors = {
        **attention_tensors(), **layers(f"{MLP}.down_proj"), **tiny.dense("model.embed_tokens"),
        "model.norm.weight": ("BF16", [64]),
    }  # fmt: skip
    model = {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True}
    whole = tiny.config(transform_config=config, ignore=IGNORE, model=model)
    result = soft(tmp_path, whole, tensors)
    found = error(result, name)
    assert list(result.errors) == [found] and isinstance(found, NoKernelFound) and found.field == "transform_config"
    assert words in str(found) and "R3 at" in str(found) and "input or output of linear layers" in str(found)
    assert found.layer == name and result.layers[name].transforms


def test_a_model_without_a_head_has_none_that_is_transformed(tmp_path: Path) -> None:
    model = {"architectures": ["BertModel"], "tie_word_embeddings": True}
    config = tiny.config(transform_config=transform(), ignore=(), model=model)
    assert set(plan(checkpoint(tmp_path, config, layers("m.x"))).layers) == {"m.x"}


def test_a_matrix_of_attention_is_no_layer(tmp_path: Path) -> None:
    config = tiny.config(transform_config=transform("q_attn", ["re:.*self_attn$"], head_dim=16), ignore=IGNORE)
    result = soft(tmp_path, config, {**attention_tensors(), **matrix(f"{ATTN}.R3_q_attn", 16)})
    assert [layer.name for layer in result.layers.values() if layer.error] == [ATTN]
    assert f"{ATTN}.R3_q_attn" not in result.layers and "R3_q_attn.weight" in result.layers[ATTN].tensors


BAD_SIZES: list[tuple[dict[str, Any], int, str, str]] = [
    ({}, 96, "R3_input.weight", "only those of powers of two"),
    ({"head_dim": 48}, 96, "R3_input.weight", "no Hadamard matrix of size 48"),
    ({"head_dim": 64}, 96, "transform_config.config_groups.R3.head_dim", "do not divide the 96 input features"),
    ({"type": "dct"}, 96, "transform_config.config_groups.R3.type", "unknown type of transform 'dct'"),
]


@pytest.mark.parametrize(("options", "k", "field", "words"), BAD_SIZES)
def test_matrices_that_cannot_be_made(tmp_path: Path, options: Any, k: int, field: str, words: str) -> None:
    folder = checkpoint(tmp_path, tiny.config(transform_config=transform(**options)), layers("m.x", k=k), 64, k)
    found = error(plan(folder, strict=False), "m.x")
    assert isinstance(found, NoKernelFound) and found.field == field and words in str(found)
    assert found.required


def test_a_matrix_of_another_size_may_be_stored(tmp_path: Path) -> None:
    tensors = {**layers("m.x", k=96), **matrix("m.x.R3_input", 96)}
    assert not plan(checkpoint(tmp_path, tiny.config(transform_config=transform()), tensors, 64, 96)).errors


def test_a_random_matrix_and_its_inverse_at_one_place(tmp_path: Path) -> None:
    config = transform(type="random-matrix")
    config["config_groups"]["R3"]["apply"].append({"targets": ["Linear"], "location": "input", "inverse": True})
    found = error(soft(tmp_path, tiny.config(transform_config=config), layers("m.x")), "m.x")
    assert isinstance(found, NoKernelFound) and "one matrix for both" in str(found)


def test_transforms_of_weights_were_done_by_the_writer(tmp_path: Path) -> None:
    config = tiny.config(transform_config=transform("weight_input", ["re:.*"], type="unheard of"), ignore=IGNORE)
    result = plan(checkpoint(tmp_path, config, attention_tensors()))
    assert codes(result) == {"transform-offline"} and not any(layer.transforms for layer in result.layers.values())


@pytest.mark.parametrize(
    "bad",
    [
        {"config_groups": {"R": 3}}, {"config_groups": {"R": {"apply": 3}}}, {"other": 1}, transform("nowhere"),
        {"config_groups": {"R": {"apply": [3]}}}, transform(type=None), transform(type=3), transform(head_dim=0),
        transform(head_dim="64"), transform(head_dim=True), transform(randomize="no"), transform(inverse=1),
        transform(precision="int8"), transform(precision="nothing"), transform(precision=None),
        {"config_groups": {"a.b": {"type": "hadamard", "apply": [{"targets": ["Linear"], "location": "input"}]}}},
        {"config_groups": {"": {"type": "hadamard", "apply": [{"targets": ["Linear"], "location": "input"}]}}},
    ],
)  # fmt: skip
def test_transforms_that_cannot_be_read(tmp_path: Path, bad: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(checkpoint(tmp_path, tiny.config(transform_config=bad), layers("m.x")))
    assert "transform_config" in str(caught.value) and caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "options", "degree", "fits"),
    [
        ("o_proj", {"head_dim": 16}, 2, True), ("o_proj", {}, 2, False), ("q_proj", {}, 2, True),
        ("o_proj", {"head_dim": 32}, 4, True), ("o_proj", {"head_dim": 64}, 4, False),
    ],
)  # fmt: skip
def test_ranks_transform_whole_blocks(tmp_path: Path, name: str, options: Any, degree: int, fits: bool) -> None:
    config = tiny.config(transform_config=transform(**options))
    folder = checkpoint(tmp_path, config, layers(f"{ATTN}.{name}", n=128, k=128), 128, 128)
    layer = plan(folder, tensor_parallel=degree, strict=False).layers[f"{ATTN}.{name}"]
    assert (layer.error is None) == fits
    assert fits or (isinstance(layer.error, NoKernelFound) and layer.error.field == "tensor_parallel")


def test_a_config_of_the_language_model_transforms_nothing_else(tmp_path: Path) -> None:
    """Its names are those inside the language model, and its classes mean none outside of it."""
    inner = tiny.config(transform_config=transform(targets=["model.m.x", "re:visual.*"]), ignore=())
    whole = {"model_type": "m", "text_config": inner}
    tensors = {**layers("language_model.model.m.x", "language_model.model.m.y"), **tiny.dense("visual.z")}
    result = soft(tmp_path, whole, tensors)
    assert {name for name, layer in result.layers.items() if layer.transforms} == {"language_model.model.m.x"}


def test_without_tensors_only_what_is_unsupported_fails() -> None:
    def apply(location: str) -> dict[str, Any]:
        return {"config_groups": {"R": {"type": "hadamard", "apply": [{"targets": ["x"], "location": location}]}}}

    for location, fails in (("input", False), ("output", False), ("q_attn", True)):
        result = plan(tiny.config(transform_config=apply(location)), strict=False)
        assert result.layers["Linear"].transforms == (f"R at {location} (hadamard)",)
        assert (result.layers["Linear"].error is not None) is fails
