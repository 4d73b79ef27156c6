"""``quantdispatch bench``: measured on the CPU, written beside the checkpoint, used by the next plan."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import quantdispatch as qd
from quantdispatch.cli.app import main
from quantdispatch.engines import bench
from quantdispatch.registry.choices import FILE


@pytest.fixture
def folder(tiny_checkpoint: Any, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoint("w4a16-asym"), tmp_path / "model"))


def run(folder: Path, *more: str) -> int:
    return main(["bench", str(folder), "--rows", "1", "--rows", "8", "--seconds", "0", *more])


def test_measures_writes_and_is_gone_by(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder) == 0
    out = capsys.readouterr().out
    assert "microseconds" in out and "and 3 more" in out and FILE in out
    document = json.loads((folder / FILE).read_text())
    plan = qd.plan(folder)
    shapes = {(layer.shape.n, layer.shape.k) for layer in plan.layers.values() if layer.scheme == "wNa16_int"}
    assert {(entry["task"]["n"], entry["task"]["k"]) for entry in document["tasks"]} == shapes
    for layer in plan.layers.values():
        if layer.scheme != "wNa16_int":
            continue
        (entry,) = [
            e for e in document["tasks"] if (e["task"]["n"], e["task"]["k"]) == (layer.shape.n, layer.shape.k)
        ]  # fmt: skip
        times = entry["microseconds"]["1"]
        assert layer.kernel == min(times, key=times.__getitem__)
        assert layer.to_json()["ranked"].startswith(f"measured at 1 row, {folder / FILE}")
    assert main(["explain", str(folder)]) == 0
    assert f"ranked   measured at 1 row, {folder / FILE}" in capsys.readouterr().out


def test_a_slow_first_kernel_is_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the figures say decides, not the order that kernels usually have."""
    usual = qd.plan(folder)
    first = next(layer.kernel for layer in usual.layers.values() if layer.scheme == "wNa16_int")

    def timed(calls: Any, device: torch.device, seconds: float) -> dict[str, float]:
        return {name: 1000.0 if name == first else 10.0 + i for i, name in enumerate(calls)}

    monkeypatch.setattr(bench, "_timed", timed)
    assert run(folder) == 0
    changed = qd.plan(folder)
    chosen = {layer.kernel for layer in changed.layers.values() if layer.scheme == "wNa16_int"}
    assert len(chosen) == 1 and first not in chosen
    assert {layer.kernel for layer in qd.plan(folder, choices=False).layers.values()} >= {first}


def test_json_and_another_file(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "mine.json"
    assert run(folder, "--json", "--out", str(target)) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["path"] == str(target) and not (folder / FILE).exists()
    assert sum(entry["layers"] for entry in document["layers"]) == 14
    assert all(set(entry["microseconds"]) == {"1", "8"} for entry in document["layers"])
    assert json.loads(target.read_text())["tasks"] == document["tasks"]


def test_a_kernel_that_fails_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    real = bench.implementation

    def implementation(kernel: Any, spec: Any) -> Any:
        if kernel.name == "cpu/int4_torch":
            raise RuntimeError("it broke")
        return real(kernel, spec)

    monkeypatch.setattr(bench, "implementation", implementation)
    assert run(folder) == 0
    assert "cpu/int4_torch: RuntimeError: it broke" in capsys.readouterr().out
    for entry in json.loads((folder / FILE).read_text())["tasks"]:
        assert "cpu/int4_torch" not in entry["microseconds"]["1"]


def test_no_kernel_at_all(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def implementation(kernel: Any, spec: Any) -> Any:
        raise RuntimeError("it broke")

    monkeypatch.setattr(bench, "implementation", implementation)
    assert run(folder) == 1
    assert "no kernel ran" in capsys.readouterr().err
    assert not (folder / FILE).exists()


def test_usage(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--device", "cuda:sm90") == 2
    assert "a model runs on cpu" in capsys.readouterr().err
    assert run(folder, "--out", str(tmp_path / "no" / "such" / "folder.json")) == 2
    assert "cannot write" in capsys.readouterr().err
    assert main(["bench", str(tmp_path / "nothing"), "--seconds", "0"]) == 2


def test_kernels_that_deviate_or_are_slow_are_not_offered(folder: Path) -> None:
    plan = qd.plan(folder)
    layer = next(layer for layer in plan.layers.values() if layer.scheme == "wNa16_int")
    offered = bench.admissible(layer.spec, plan, {})
    assert offered and not any(kernel.slow or kernel.deviations for kernel in offered)
    forced = qd.plan(folder, backend="reference")
    assert {kernel.backend for kernel in offered} == {"cpu"}
    assert {one.backend for one in forced.layers.values() if one.scheme == "wNa16_int"} == {"reference"}


def test_a_loaded_model_runs_what_was_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(calls: Any, device: torch.device, seconds: float) -> dict[str, float]:
        return {name: 1.0 if name == "cpu/dequant" else 2.0 for name in calls}

    monkeypatch.setattr(bench, "_timed", timed)
    assert run(folder) == 0
    from quantdispatch.engines.modules import QuantLinear

    model = qd.load(folder)
    assert {module.kernel.name for module in model.modules() if isinstance(module, QuantLinear)} == {"cpu/dequant"}
