"""What a checkpoint's files and an engine's own reading of its config tell an adapter."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from stored_layers import config, stored, weights

from quantdispatch.engines.adapters.checkpoint import planned_layers, readable_groups

LOG = logging.getLogger("stand_in.plugins")
#: the head is stored dense, which the config does not say
BLOCK = config((["Linear"], weights(), None, "pack-quantized"))
NAME = "model.layers.0.mlp.down_proj"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": BLOCK}))
    tensors = {f"{NAME}.{local}": tensor for local, tensor in stored(BLOCK, NAME, 64, 64).tensors.items()}
    save_file({**tensors, "model.norm.weight": torch.ones(64)}, tmp_path / "model.safetensors")
    return tmp_path


def planned(folder: Path | str, rename: Any = None, block: Any = None) -> dict[str, Any]:
    return planned_layers(str(folder), rename, device="cpu", dtype="float32", log=LOG, block=block)


def test_layers_as_the_stored_tensors_have_them(folder: Path) -> None:
    layers = planned(folder)
    assert set(layers) == {NAME} and layers[NAME].tensors


def test_names_are_the_engines_and_what_it_has_no_use_for_is_left_out(folder: Path) -> None:
    assert set(planned(folder, lambda name: name.replace("model.", "language_model.model."))) == {
        NAME.replace("model.", "language_model.model.")
    }
    assert planned(folder, lambda name: None) == {}


def test_another_block_than_the_folders_is_not_the_folders_to_explain(folder: Path) -> None:
    assert planned(folder, block=BLOCK) and planned(folder, block={**BLOCK, "ignore": ["lm_head"]}) == {}


def test_a_folder_that_cannot_be_planned_says_nothing(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert planned("some/model-of-a-hub") == {}
    (folder / "config.json").write_text("{")
    with caplog.at_level(logging.DEBUG, LOG.name):
        assert planned(folder) == {}
    assert "no plan of" in caplog.text
    (folder / "config.json").write_text(json.dumps({"quantization_config": BLOCK}))
    (folder / "model.safetensors").unlink()
    assert planned(folder) == {}, "a config alone"


def test_groups_that_an_engine_refuses_are_left_out_of_its_map(caplog: pytest.LogCaptureFixture) -> None:
    def read(block: dict[str, Any]) -> dict[str, Any]:
        ((name, group),) = block["config_groups"].items()
        assert group["weights"]["num_bits"] == 4, "no such bits"
        return {target: name for target in group["targets"]}

    block = config(
        (["re:.*q_proj"], weights(4), None, "pack-quantized"), (["Linear"], weights(3), None, "pack-quantized")
    )
    with caplog.at_level(logging.DEBUG, LOG.name):
        assert readable_groups(block, read, LOG) == {"re:.*q_proj": "group_0"}
    assert "group_1" in caplog.text and "no such bits" in caplog.text
