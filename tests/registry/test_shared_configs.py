"""Configs of real checkpoints, whole: what each comes to by itself, and layer by layer for its architecture.

The table is ``tests/data/configs/shared/expected.toml``; the configs beside it are whole, but for fields that a source
left out.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import architectures
import pytest

import quantdispatch as qd
from quantdispatch.cli.app import main

FOLDER = Path(__file__).parents[1] / "data" / "configs" / "shared"
EXPECTED: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "expected.toml").read_text())
READ = [name for name, row in EXPECTED.items() if "error" not in row]
REFUSED = [name for name, row in EXPECTED.items() if "error" in row]
WITH_MODEL = [name for name in READ if "model" in EXPECTED[name]]


def config(name: str) -> Path:
    return FOLDER / f"{name}.json"


def test_every_config_has_a_row() -> None:
    assert set(EXPECTED) == {path.stem for path in FOLDER.glob("*.json")}


@pytest.mark.parametrize("name", READ)
def test_the_config_alone(name: str) -> None:
    row = EXPECTED[name]
    result = qd.plan(config(name))  # strict: every layer resolves
    layers = dict(result.layers)
    dense = [layer for layer in layers.values() if layer.scheme == "dense" and layer.ignored_by == layer.name]
    assert len(dense) == row["dense"] and all(layer.group is None for layer in dense)
    for layer in dense:
        del layers[layer.name]
    assert {n: f"{layer.kind} {layer.scheme} {layer.group}" for n, layer in layers.items()} == row["layers"]
    assert sorted({p.code for p in result.problems} - {"no-tensors"}) == row["problems"]
    assert all(layer.kernel for layer in layers.values())


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_config(name: str) -> None:
    row = EXPECTED[name]
    for strict in (True, False):
        with pytest.raises(getattr(qd, row["error"])) as caught:
            qd.plan(config(name), strict=strict)
        text = str(caught.value)
        assert caught.value.field == row["field"] and all(words in text for words in row["says"]), text
    # a model's modules change nothing about a config that cannot be read
    with pytest.raises(getattr(qd, row["error"])):
        qd.plan(config(name), modules=architectures.llama())


@pytest.mark.parametrize("name", WITH_MODEL)
def test_layer_by_layer(name: str) -> None:
    row = EXPECTED[name]
    make, options = row["model"]
    result = qd.plan(config(name), modules=getattr(architectures, make)(**options))
    found = Counter((x.kind, x.scheme, x.group or "", x.ignored_by or "") for x in result.layers.values())
    assert found == Counter({tuple(rest): count for count, *rest in row["planned"]})


@pytest.mark.parametrize("name", EXPECTED)
def test_explain_prints_it_and_its_exit_code_tells(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    row = EXPECTED[name]
    code = main(["explain", str(config(name))])
    printed = capsys.readouterr()
    assert "Traceback" not in printed.out + printed.err
    if "error" in row:
        assert code == 2 and row["field"] in printed.err and not printed.out
        return
    assert code == 0, printed.err
    schemes = {text.split()[1] for text in row["layers"].values()}
    assert all(scheme in printed.out for scheme in schemes)


@pytest.mark.parametrize("name", READ)
def test_explain_as_json_is_the_plan(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(config(name)), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["version"] == 1 and all(layer["error"] is None for layer in shown["layers"])
    assert [layer["name"] for layer in shown["layers"]] == list(qd.plan(config(name)).layers)


def test_layers_56_to_63_belong_to_the_group_that_lists_them() -> None:
    result = qd.plan(config("unsloth--Qwen3.6-27B-NVFP4"), modules=architectures.qwen3_5(layers=(3, 56)))
    by_layer = {n: result.layers[f"model.language_model.layers.{n}.mlp.down_proj"].scheme for n in (3, 56)}
    assert by_layer == {3: "w4a4_nvfp4", 56: "w8a8_fp8"}


def test_a_config_inside_text_config_says_nothing_of_the_tower() -> None:
    result = qd.plan(config("moonshotai--Kimi-K2.5"), modules=architectures.kimi_vl())
    (problem,) = [p for p in result.problems if p.code == "outside-config"]
    assert problem.severity == "note" and "vision_tower" in problem.message
    assert result.layers["language_model.lm_head"].ignored_by == "lm_head"
