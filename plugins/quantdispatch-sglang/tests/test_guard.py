"""An SGLang that is missing, too old, too new or broken is left alone, with one warning; with stand-ins for it."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError
from types import ModuleType

import pytest
import quantdispatch_sglang
from quantdispatch_sglang import guard


def installed(monkeypatch: pytest.MonkeyPatch, found: str | None) -> None:
    def version(name: str) -> str:
        if found is None:
            raise PackageNotFoundError(name)
        return found

    monkeypatch.setattr(guard, "version", version)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (None, "no SGLang is installed"),
        ("0.4.6", "0.4.6 is too old; 0.5.23 is needed"),
        ("0.5.22.post1", "too old"),
        ("0.5.24", "newer than this adapter"),
        ("1.0", "newer than this adapter"),
        ("dev", "none to compare"),
    ],
)
def test_other_releases(found: str | None, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, found)
    assert says in str(guard.obstacle())


@pytest.mark.parametrize("found", ["0.5.23", "0.5.23.post2", "0.5.23+cu128"])
def test_its_own_release(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, found)
    fits(monkeypatch)
    assert guard.obstacle() is None


def fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is needed is there."""
    for name in ("sglang", "sglang.srt", "sglang.srt.utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(guard, "missing", lambda needed: None)


def test_devices_that_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "0.5.23")
    fits(monkeypatch)
    sys.modules["sglang.srt.utils"].is_npu = lambda: True  # type: ignore[attr-defined]
    assert guard.obstacle() == "it knows no npu devices"


def test_one_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Processes that SGLang starts inherit that it has been said."""
    installed(monkeypatch, "0.4.6")
    for _ in range(2):
        quantdispatch_sglang.register()
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "0.4.6 is too old" in caplog.text and "QUANTDISPATCH_SGLANG=0" in caplog.text


def test_what_fails_while_taking_over_is_a_warning_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def take_over() -> None:
        raise AttributeError("nothing is where it was")

    config = ModuleType("quantdispatch_sglang.config")
    config.take_over = take_over  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "quantdispatch_sglang.config", config)
    monkeypatch.setattr(guard, "obstacle", lambda: None)
    quantdispatch_sglang.register()
    assert "AttributeError: nothing is where it was" in caplog.text


def test_switched_off(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("QUANTDISPATCH_SGLANG", "0")
    installed(monkeypatch, "0.4.6")
    quantdispatch_sglang.register()
    assert not caplog.records and "sglang" not in sys.modules


def test_without_a_base_package_that_fits_the_engine_starts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "quantdispatch_sglang.guard", None)
    monkeypatch.delattr(quantdispatch_sglang, "guard")
    quantdispatch_sglang.register()
    assert [record.levelname for record in caplog.records] == ["WARNING"] and "left out" in caplog.text
