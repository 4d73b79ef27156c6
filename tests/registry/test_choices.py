"""A file of measured kernels: plans go by it on the machine that it is of, and nowhere else; a broken one is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import quantdispatch as qd
from quantdispatch.registry.choices import (
    FILE,
    VARIABLE,
    Choices,
    Measured,
    identity,
    read_choices,
    task_key,
    write_choices,
)
from quantdispatch.registry.environment import Environment

ASSUMED = {"torch": "2.11.0", "triton": "3.6.0", "vllm": "0.32.0", "sglang": None}
SHAPES = {"model.layers.0.mlp.up_proj": "Linear"}
INT4: dict[str, Any] = {
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "strategy": "group", "group_size": 128}}
        },
    }
}


def made(**options: Any) -> Any:
    plan = qd.plan(INT4, device="cuda:sm90", environment=options.pop("environment", ASSUMED), modules=SHAPES, **options)
    return plan, plan.layers["model.layers.0.mlp.up_proj"]


@pytest.fixture
def choices(tmp_path: Path) -> Choices:
    plan, layer = made()
    key = task_key(layer.spec)
    times = {1: {"triton/wna16": 10.0, "marlin/vllm": 12.5}, 512: {"triton/wna16": 90.0, "marlin/vllm": 80.0}}
    return Choices(str(tmp_path / FILE), identity(plan.environment), {key: Measured(key, times)})


def test_there_and_back(choices: Choices) -> None:
    write_choices(choices)
    again = read_choices(choices.path)
    assert (again.facts, again.tasks, again.path) == (choices.facts, choices.tasks, choices.path)


@pytest.mark.parametrize(
    ("rows", "kernel"), [(1, "triton/wna16"), (4, "triton/wna16"), (200, "marlin/vllm"), (5000, "marlin/vllm")]
)
def test_a_plan_goes_by_the_nearest_number_of_rows(choices: Choices, rows: int, kernel: str) -> None:
    write_choices(choices)
    _, usual = made(environment={**ASSUMED, "rows": 1})
    assert usual.kernel == "marlin/vllm" and usual.to_json()["ranked"] is None
    _, layer = made(choices=choices.path, environment={**ASSUMED, "rows": rows})
    assert layer.kernel == kernel
    ranked = layer.to_json()["ranked"]
    assert ranked.startswith("measured at ") and choices.path in ranked and "triton/wna16" in ranked and " us" in ranked


def test_where_a_file_is_found(choices: Choices, monkeypatch: pytest.MonkeyPatch) -> None:
    write_choices(choices)
    monkeypatch.setenv(VARIABLE, choices.path)
    assert made()[1].kernel == "triton/wna16"
    assert made(choices=False)[1].kernel == "marlin/vllm"
    monkeypatch.delenv(VARIABLE)
    assert made()[1].kernel == "marlin/vllm"


def test_figures_of_another_machine_are_not_used(choices: Choices) -> None:
    write_choices(choices)
    plan, layer = made(choices=choices.path, environment={**ASSUMED, "triton": "3.7.0"})
    assert layer.kernel == "marlin/vllm"
    (problem,) = [problem for problem in plan.problems if problem.code == "choices-unused"]
    assert "package.triton was 3.6.0, is 3.7.0" in problem.message and problem.where == choices.path


def test_a_measured_kernel_that_does_not_fit_is_not_taken(choices: Choices) -> None:
    """The order is measured, the requirements stay: what is measured is asked first, not forced."""
    times = {1: {"marlin/sglang": 1.0, "cpu/native": 2.0, "triton/wna16": 3.0, "nobody/knows": 0.5}}
    key = next(iter(choices.tasks))
    other = Choices(choices.path, choices.facts, {key: Measured(key, times)})
    write_choices(other)
    _, layer = made(choices=other.path)
    assert layer.kernel == "triton/wna16"
    assert [str(c.kernel.name) for c in layer.selection.trace[:2]] == ["marlin/sglang", "cpu/native"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 2, "environment": {}, "tasks": []}',
        '{"version": 1, "environment": [], "tasks": [1]}',
    ]
    + [
        json.dumps({"version": 1, "environment": {}, "tasks": [{"task": {}, "microseconds": times}]})
        for times in ({}, {"0": {"a/b": 1}}, {"1": {}}, {"1": {"a/b": -1}}, {"one": {"a/b": 1}}, {"1": {"a/b": "x"}})
    ],
)
def test_broken_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "choices.json"
    path.write_text(text)
    with pytest.raises(qd.ConfigError, match="no file of measured kernels") as caught:
        made(choices=path)
    assert str(path) in str(caught.value) and caught.value.exit_code == 2


def test_files_that_are_not_there(tmp_path: Path, choices: Choices) -> None:
    with pytest.raises(qd.ConfigError, match="No such file"):
        made(choices=tmp_path / "none.json")
    with pytest.raises(qd.ConfigError, match="cannot write"):
        write_choices(Choices(str(tmp_path / "no" / "folder.json"), {}, {}))


def test_a_task_is_all_that_a_time_depends_on() -> None:
    _, layer = made()
    keys = {task_key(layer.spec)}
    from dataclasses import replace

    for changes in ({"n": 5}, {"k": 7}, {"dtype": "float16"}, {"bias": True}, {"kind": "moe"}, {"has_g_idx": True}):
        keys.add(task_key(replace(layer.spec, **changes)))
    assert len(keys) == 7
    assert task_key(replace(layer.spec, measured=("a/b",), measured_by="x")) == task_key(layer.spec)


def test_threads_count_on_the_cpu_only() -> None:
    assert "threads" in identity(Environment.detect("cpu"))
    assert "threads" not in identity(Environment.detect("cuda:sm90"))
