"""Checkpoints of two hundred thousand tensors: a screen for each group, in seconds. Only headers are read."""

from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path

import pytest
import tiny_plans as tiny
from terminal_sources import mixture, sparse
from terminals import columns_of, on_terminal, seen

from quantdispatch.cli.app import main

LAYERS, EXPERTS = 100, 256
ROUTERS = "re:.*mlp.gate$"
#: of processor time, on a machine of 2020; the wall's depends on who else is there
SECONDS = 10


@pytest.fixture(scope="module")
def regular(tmp_path_factory: pytest.TempPathFactory) -> str:
    tensors = mixture(LAYERS, EXPERTS)
    assert len(tensors) == LAYERS * (9 * EXPERTS + 13)
    return sparse(tmp_path_factory.mktemp("regular"), tiny.config(ignore=[ROUTERS]), tensors)


@pytest.fixture(scope="module")
def irregular(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Every fifth layer is named in the config by itself, half of the layers have other shapes, some lack a tensor."""
    chance = random.Random(5)
    tensors = mixture(LAYERS, EXPERTS)
    names = [name.removesuffix(".weight_packed") for name in tensors if name.endswith(".weight_packed")]
    for name in names:
        if chance.random() < 0.5:
            tensors.update(tiny.int4(name, n=72))
        if chance.random() < 0.01:
            del tensors[f"{name}.weight_scale"]
    targets = [name for name in names if chance.random() < 0.2]
    ignored = [f"model.layers.{i}.mlp.gate" for i in range(LAYERS)]
    config = tiny.config(tiny.group(), tiny.group(targets=targets), ignore=ignored)
    return sparse(tmp_path_factory.mktemp("irregular"), config, tensors)


def blocks(out: str) -> dict[str, list[str]]:
    """Head to the lines below it, up to the empty line above the footer."""
    report = out.split("\n\n")[1]
    found: dict[str, list[str]] = {}
    for line in report.splitlines():
        if re.match(r" {0,4}\d+ layers? ", line):
            found[line] = below = []
        else:
            below.append(line)
    return found


def test_a_regular_one_is_three_groups(regular: str, capsys: pytest.CaptureFixture[str]) -> None:
    begun = time.process_time()
    assert main(["explain", regular]) == 0
    assert time.process_time() - begun < SECONDS
    found = blocks(capsys.readouterr().out)
    assert [head.split()[:2] for head in found] == [["76800", "layers"], ["400", "layers"], ["100", "layers"]]
    assert all(len(lines) < 24 for lines in found.values())
    assert [lines[0] for lines in found.values()] == [
        "    model.layers.0-99.mlp.experts.0-255.{gate,up,down}_proj",
        "    model.layers.0-99.self_attn.{q,k,v,o}_proj",
        "    model.layers.0-99.mlp.gate",
    ]


@pytest.mark.parametrize("columns", [None, 40, 120])
def test_an_irregular_one_is_a_screen_a_group(
    irregular: str, columns: int | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("COLUMNS", raising=False)
    begun = time.process_time()
    if columns is None:
        assert main(["explain", irregular]) == 1
        out = capsys.readouterr().out
    else:
        code, out = on_terminal(["explain", irregular], columns)
        assert code == 1 and max(map(columns_of, seen(out))) <= columns
    assert time.process_time() - begun < SECONDS
    found = blocks(out)
    assert sum(int(head.split()[0]) for head in found) == LAYERS * (3 * EXPERTS + 5)
    assert all(len(lines) < 24 for lines in found.values()) and len(found) <= 6
    assert out.count("(all of them with --full)") >= 2 or columns == 40


def test_full_names_every_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"part{i * i}.x{i}y" for i in range(300)]
    source = sparse(tmp_path, tiny.config(), tiny.layers(*names))
    assert main(["explain", source]) == 0
    assert len(capsys.readouterr().out.splitlines()) < 40
    assert main(["explain", source, "--full"]) == 0
    assert {f"    {name}" for name in names} <= set(capsys.readouterr().out.splitlines())
    assert main(["explain", source, "--json"]) == 0
    assert {layer["name"] for layer in json.loads(capsys.readouterr().out)["layers"]} == set(names)
