"""Configs are chosen by what was measured: with a family of kernels and a timer of our own, and no GPU."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from quantdispatch.registry.errors import QuantDispatchError

pytest.importorskip("triton", reason="Triton is published for Linux only")
from quantdispatch.backends.triton import autotune, tuning

DEVICE = SimpleNamespace(key="a device")


@dataclass(frozen=True)
class Block:
    size: int


DEFAULT, SLOW, FAST = Block(1), Block(2), Block(4)


class Kernel:
    """A call that asks for a config, for each of ``tasks``. ``ran``: (task, config) of the calls."""

    def __init__(self, *tasks: int, candidates: tuple[Block, ...] = (DEFAULT, SLOW, FAST)) -> None:
        self.tasks = tasks
        self.family: tuning.Family[Block] = tuning.Family(
            "toy", Block, lambda n: f"n{n}", lambda device, n: DEFAULT, lambda device, n: list(candidates)
        )
        self.ran: list[tuple[int, Block]] = []
        self.results: dict[Block, Callable[[], torch.Tensor]] = {}

    def __call__(self) -> torch.Tensor:
        result = torch.ones(3)
        for task in self.tasks:
            config = self.family.choice(0, task)
            self.ran.append((task, config))
            result = self.results.get(config, lambda: torch.ones(3))()
        return result

    def chosen(self) -> list[Block]:
        self.ran.clear()
        self()
        return [config for _, config in self.ran]

    def seconds(self, call: Callable[[], object]) -> float:
        """Of all tasks together, the less the larger the blocks."""
        self.ran.clear()
        call()
        return sum(1 / config.size for _, config in self.ran)


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "configs.json"
    table = autotune.Choices(DEVICE.key, path)
    monkeypatch.setattr(tuning, "device_at", lambda index: DEVICE)
    monkeypatch.setattr(autotune, "choices", lambda key: table)
    tuning.forget()
    return path


def test_a_launch_measures_nothing_and_takes_the_default(file: Path) -> None:
    assert Kernel(8).chosen() == [DEFAULT] and not file.exists()


def test_the_fastest_is_kept_and_taken_from_then_on(file: Path) -> None:
    kernel = Kernel(8)
    (tuned,) = tuning.tune(kernel, kernel.seconds)
    assert tuned.best == FAST and tuned.times == {DEFAULT: 1.0, SLOW: 0.5, FAST: 0.25} and not tuned.refused
    assert kernel.chosen() == [FAST] and Kernel(9).chosen() == [DEFAULT]
    assert autotune.Choices(DEVICE.key, file).get("toy n8", Block) == FAST
    assert tuned.to_json()["best"] == str(FAST) and len(tuned.to_json()["figures"]) == 3


def test_what_has_an_entry_is_measured_only_when_asked_to(file: Path) -> None:
    kernel = Kernel(8)
    assert len(tuning.tune(kernel, kernel.seconds)) == 1
    before = file.read_bytes()
    assert tuning.tune(kernel, kernel.seconds) == [] and file.read_bytes() == before
    (again,) = tuning.tune(kernel, lambda call: -kernel.seconds(call), again=True)
    assert again.best == DEFAULT and kernel.chosen() == [DEFAULT]


def test_every_choice_of_a_call_is_measured_one_after_another() -> None:
    kernel = Kernel(8, 16)
    assert [(one.task, one.best) for one in tuning.tune(kernel, kernel.seconds)] == [
        ("toy n8", FAST),
        ("toy n16", FAST),
    ]
    assert kernel.chosen() == [FAST, FAST]


def _raises() -> torch.Tensor:
    raise RuntimeError("out of shared memory")


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (_raises, "RuntimeError: out of shared memory"),
        (lambda: torch.full((3,), 1.1), "ValueError: its result is not the default's"),
        (lambda: torch.full((3,), torch.nan), "ValueError: its result is not the default's"),
        (lambda: torch.ones(4), "ValueError: its result is not the default's"),
    ],
)
def test_what_does_not_run_or_is_wrong_is_not_taken(result: Callable[[], torch.Tensor], reason: str) -> None:
    kernel = Kernel(8)
    kernel.results[FAST] = result
    (tuned,) = tuning.tune(kernel, kernel.seconds)
    assert tuned.best == SLOW and tuned.refused == {FAST: reason} and FAST not in tuned.times


def test_sums_in_another_order_are_the_same_result() -> None:
    kernel = Kernel(8)
    kernel.results[FAST] = lambda: torch.full((3,), 1.001)
    assert tuning.tune(kernel, kernel.seconds)[0].best == FAST


def test_without_time_what_was_measured_decides() -> None:
    kernel, left = Kernel(8, 16), iter([True, False])
    found = tuning.tune(kernel, kernel.seconds, go_on=lambda: next(left, False))
    assert (
        [one.task for one in found] == ["toy n8"] and found[0].best == SLOW and set(found[0].times) == {DEFAULT, SLOW}
    )
    assert kernel.chosen() == [SLOW, DEFAULT]


def test_where_there_is_no_choice_nothing_is_measured(file: Path) -> None:
    kernel = Kernel(8, candidates=(DEFAULT,))
    assert tuning.tune(kernel, kernel.seconds) == [] and not file.exists()


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        json.dumps({"0-other a device": {"toy n8": {"size": 4}}}),
        json.dumps({f"{autotune.version()} another device": {"toy n8": {"size": 4}}}),
        json.dumps({f"{autotune.version()} a device": {"toy n8": {"size": 3}}}),
        json.dumps({f"{autotune.version()} a device": {"toy n8": {"width": 4}}}),
    ],
    ids=["cut off", "no table", "another version", "another device", "no candidate", "another form"],
)
def test_entries_that_do_not_fit_leave_the_default(file: Path, content: str) -> None:
    file.write_text(content)
    assert Kernel(8).chosen() == [DEFAULT]


def test_an_entry_that_fits_is_taken(file: Path) -> None:
    file.write_text(json.dumps({f"{autotune.version()} a device": {"toy n8": {"size": 4}}}))
    assert Kernel(8).chosen() == [FAST]


def test_nothing_is_measured_where_torch_compile_traces(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(8)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with pytest.raises(QuantDispatchError, match="torch.compile") as raised:
        tuning.tune(kernel, kernel.seconds)
    assert raised.value.code == "QD804" and kernel.ran == [] and not file.exists()


def test_what_one_thread_tries_is_not_what_another_one_runs() -> None:
    kernel, seen = Kernel(8), []

    def other() -> Any:
        seen.extend(kernel.chosen())

    with tuning.forced(kernel.family, FAST):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert kernel.chosen() == [FAST]
    assert seen == [DEFAULT] and kernel.chosen() == [DEFAULT]


def test_a_config_forced_inside_of_another_gives_way_to_it_again() -> None:
    kernel = Kernel(8)
    with tuning.forced(kernel.family, SLOW):
        with tuning.forced(kernel.family, FAST):
            assert kernel.chosen() == [FAST]
        assert kernel.chosen() == [SLOW]
