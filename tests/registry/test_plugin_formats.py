"""Formats that plugins bring: their tensors are found by what their schemes declare, in configs that use them alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny_plans import Tensors, folder, int4

import quantdispatch as qd
from quantdispatch.registry.scheme import LayerShape, StoredTensor, TensorInfo
from quantdispatch.schemes.wna16_int import WNA16Int
from quantdispatch.testing import registry_with, using_registry

UP, NORM = "model.layers.0.mlp.up_proj", "model.norm"
ARGS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
PLAIN: Tensors = {f"{NORM}.weight": ("BF16", [64])}
BLOB: Tensors = {f"{UP}.blob": ("U8", [64, 32]), f"{UP}.steps": ("F16", [64, 2])}


class Blob(WNA16Int):
    """``blob`` [N, K/2] and ``steps`` [N, G], perhaps ``notes``."""

    def stored(self, shape: LayerShape) -> Sequence[StoredTensor]:
        return (
            StoredTensor("blob", ((shape.n, shape.k // 2),), frozenset({"U8"}), ("out", "in"), packed="in"),
            StoredTensor("steps", ((shape.n, shape.k // 32),), frozenset({"F16"}), ("out", "group")),
            StoredTensor("notes", ((shape.n,),), frozenset({"F32"}), ("out",), required=False),
        )

    def shape(self, name: str, tensors: Mapping[str, TensorInfo]) -> LayerShape:
        n, half = tensors["blob"].shape
        return LayerShape(n, half * 2)


class Plugin:
    """Translates ``quant_method: blobs``."""

    @qd.hookimpl
    def quantdispatch_rules(self) -> Iterator[qd.Rule]:
        yield qd.Rule(
            name="blob",
            when=qd.When(
                kind="linear",
                format="blob",
                inputs=qd.Absent,
                outputs=qd.Absent,
                weights=qd.Args(type="int", num_bits=4),
            ),
            scheme=f"{__name__}:Blob",
        )

    @qd.hookimpl
    def quantdispatch_config(self, config: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if config["quant_method"] != "blobs":
            return None
        if config.get("how") == "badly":
            raise KeyError("how")
        if config.get("how") == "not at all":
            raise qd.ConfigError("blobs of no known kind", field="how")
        return ours(config.get("as", "blob"), ignore=config.get("leave", []))


def ours(name: str = "blob", **more: Any) -> dict[str, Any]:
    groups = {"all": {"targets": ["Linear"], "weights": ARGS}}
    return {"quant_method": "compressed-tensors", "format": name, "config_groups": groups, **more}


THEIRS = {"quant_method": "blobs"}


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    with using_registry(registry_with(Plugin())):
        yield


def plan(path: Path, block: dict[str, Any], tensors: Tensors) -> Any:
    return qd.plan(folder(path, {"quantization_config": block}, {**PLAIN, **tensors}), strict=False)


@pytest.mark.parametrize("block", [THEIRS, ours()], ids=["translated", "in our own words"])
def test_layers_are_found_by_the_tensors_that_the_scheme_declares(block, tmp_path) -> None:
    result = plan(tmp_path, block, BLOB)
    layer = result.layers[UP]
    assert not result.errors and list(result.layers) == [UP]
    assert (layer.rule.name, layer.format, layer.shape.n, layer.shape.k) == ("blob", "blob", 64, 64)
    assert layer.kernel and layer.inferred == "Linear, from its blob"
    assert not [p for p in result.problems if p.severity != "note"]  # the format is known


def test_in_other_configs_the_names_mean_nothing(tmp_path) -> None:
    """A parameter called ``steps`` is quantized in no file but those of the plugin."""
    group = {"targets": ["Linear"], "weights": ARGS, "format": "pack-quantized"}
    block = {"quant_method": "compressed-tensors", "config_groups": {"all": group}}
    result = plan(tmp_path, block, {"model.other.steps": ("F16", [4]), "model.other.blob": ("U8", [4, 4])})
    assert not result.errors and not result.layers


@pytest.mark.parametrize(
    ("block", "tensors", "words"),
    [
        ({**THEIRS, "leave": [UP]}, BLOB, "ignores it by"),
        (THEIRS, {f"{UP}.steps": ("F16", [64, 2])}, "no layer consumes steps"),
        (THEIRS, {f"{UP}.notes": ("F32", [64])}, "no layer consumes notes"),
        (THEIRS, {**BLOB, f"{UP}.more": ("F32", [64])}, "no use for stored more"),
        (THEIRS, {**BLOB, f"{UP}.steps": ("F16", [64, 3])}, "steps has the wrong shape"),
        (THEIRS, {f"{UP}.blob": ("U8", [64, 32])}, "needs steps"),
        (ours(), {f"{UP}.weight": ("BF16", [64, 64])}, "stored dense"),
    ],
)
def test_every_tensor_has_an_owner(block, tensors, words, tmp_path) -> None:
    (error,) = plan(tmp_path, block, tensors).errors
    assert isinstance(error, qd.CheckpointError) and error.layer == UP
    assert words in str(error)


def test_what_a_translated_config_need_not_list_stays_dense(tmp_path) -> None:
    result = plan(tmp_path, THEIRS, {**BLOB, "model.layers.0.mlp.gate.weight": ("BF16", [4, 64])})
    assert not result.errors
    assert {name: layer.scheme for name, layer in result.layers.items()} == {
        "model.layers.0.mlp.gate": "dense",
        UP: "wNa16_int",
    }
    assert ["model.layers.0.mlp.gate"] == [p.where for p in result.problems if p.code == "stored-dense"]


def test_engines_read_foreign_configs_by_code_that_is_not_judged(tmp_path) -> None:
    name = "pack-quantized"
    layer, other = (
        plan(tmp_path / where, block, int4(UP)).layers[UP]
        for where, block in (("theirs", {**THEIRS, "as": name}), ("ours", ours(name)))
    )
    assert (layer.rule, layer.kernel) == (other.rule, other.kernel)
    assert other.equivalents and not layer.equivalents and not layer.differs


def test_a_config_of_no_meaning_is_an_error_of_the_plugin_or_of_the_file(tmp_path) -> None:
    with pytest.raises(qd.ConfigError, match="no known kind"):
        plan(tmp_path, {**THEIRS, "how": "not at all"}, BLOB)
    with pytest.raises(qd.PluginError, match="under test fails to translate the config: KeyError"):
        plan(tmp_path, {**THEIRS, "how": "badly"}, BLOB)


def test_errors_of_a_translated_block_say_where_it_stands() -> None:
    result = qd.plan({"text_config": {"quantization_config": THEIRS}}, modules={f"language_model.{UP}": "Linear"})
    assert result.config.path == "text_config.quantization_config" and result.config.translated_by == "under test"
    assert result.layers[f"language_model.{UP}"].scheme == "wNa16_int"
