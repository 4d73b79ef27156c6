"""An engine that is missing, too old, too new or broken starts as without us, with one warning."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections import namedtuple
from types import ModuleType
from typing import Any

import pytest

from quantdispatch.engines.adapters.guard import Guard, missing

SWITCH, LOG = "QUANTDISPATCH_STAND_IN", "stand_in.plugins"
GUARD = Guard("Engine", SWITCH, first=(1, 4, 2), beyond=(1, 5), log=LOG)
MODULE = "stand_in_engine"


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (SWITCH, f"{SWITCH}_WARNED"):
        # set first, so that what a test leaves behind is taken away again
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ("1.4.2", None),
        ("1.4.2+cpu", None),
        ("1.4.9rc1", None),
        ("1.4.12.post1", None),
        (None, "no Engine is installed"),
        ("1.4.1", "Engine 1.4.1 is too old; 1.4.2 is needed"),
        ("1.4", "too old"),
        ("0.99", "too old"),
        ("1.5", "newer than this adapter, which is for 1.4.2"),
        ("1.5.0.dev0", "newer than this adapter"),
        ("12.0", "newer than this adapter"),
        ("dev", "none to compare"),
        ("", "none to compare"),
    ],
)
def test_releases(found: str | None, says: str | None) -> None:
    reason = GUARD.release(found)
    assert reason is None if says is None else says in str(reason)


class Made:
    def __new__(cls, *args: Any) -> Made:
        return super().__new__(cls)

    def __init__(self, data: Any, loader: Any = None) -> None: ...


class Config:
    table: dict[str, int] = {}

    def method(self, layer: Any, prefix: str, more: int = 0) -> None: ...

    @classmethod
    def make(cls, config: Any) -> None: ...

    @staticmethod
    def takes(*args: Any, **kwargs: Any) -> None: ...


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType(MODULE)
    module.Config, module.Made, module.Row = Config, Made, namedtuple("Row", "hidden topk")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, MODULE, module)
    return module


@pytest.mark.parametrize(
    ("path", "expected", "says"),
    [
        ("Config.method", ("layer", "prefix"), None),
        ("Config.method", ("layer", "prefix", "more"), None),
        ("Config.method", None, None),
        ("Config.method", ("layer", "name"), "takes no name"),
        ("Config.method", ("layer",), "wants prefix, which is new"),
        ("Config.make", ("config",), None),
        ("Config.make", (), "wants config, which is new"),
        ("Config.takes", (), None),
        ("Config.table", None, None),
        ("Config.table", ("key",), "has parameters that cannot be read"),
        ("Config.absent", None, f"{MODULE} has no Config.absent"),
        ("Absent.method", (), f"{MODULE} has no Absent.method"),
        ("Made", ("data", "loader"), None),
        ("Made", ("data", "size"), "takes no size"),
        ("Row", ("hidden", "topk"), None),
        ("Row", ("hidden",), "wants topk, which is new"),
    ],
)
def test_what_is_not_as_it_was_is_named(engine: ModuleType, path: str, expected: Any, says: str | None) -> None:
    found = missing({MODULE: {path: expected}})
    assert found is None if says is None else says in str(found)


@pytest.mark.parametrize("raised", [ImportError("no libcudart"), RuntimeError("no such op"), KeyError("device")])
def test_a_module_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch, raised: Exception) -> None:
    class Broken:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == MODULE:
                raise raised

    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    found = str(missing({MODULE: {"Config": None}}))
    assert found.startswith(f"{MODULE} cannot be imported: {type(raised).__name__}")


def takeover(monkeypatch: pytest.MonkeyPatch, function: Any) -> str:
    module = ModuleType("stand_in_adapter")
    module.take_over = function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return f"{module.__name__}:take_over"


def test_an_engine_that_fits_is_taken_over(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    called: list[int] = []
    GUARD.register(lambda: None, takeover(monkeypatch, lambda: called.append(1)))
    assert called == [1] and not caplog.records


def raises(error: Exception) -> Any:
    def function() -> None:
        raise error

    return function


@pytest.mark.parametrize(
    ("obstacle", "take_over", "says"),
    [
        (lambda: "it is\n   too old", lambda: None, "left out: it is too old. Engine goes on"),
        (raises(OSError("no metadata")), lambda: None, "OSError: no metadata"),
        (lambda: None, raises(AttributeError("nothing is where it was")), "AttributeError: nothing is where it was"),
    ],
    ids=["obstacle", "asking fails", "taking over fails"],
)
def test_whatever_is_wrong_is_one_warning(
    obstacle: Any, take_over: Any, says: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Processes that an engine starts inherit that it has been said."""
    target = takeover(monkeypatch, take_over)
    with caplog.at_level(logging.WARNING, LOG):
        for _ in range(2):
            GUARD.register(obstacle, target)
    assert [(record.name, record.levelname) for record in caplog.records] == [(LOG, "WARNING")]
    assert says in caplog.text and f"{SWITCH}=0 silences this" in caplog.text


def test_an_adapter_that_cannot_be_imported_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    GUARD.register(lambda: None, "stand_in_adapter_that_is_not_there:take_over")
    assert "stand_in_adapter_that_is_not_there" in caplog.text


def test_switched_off_it_does_not_even_ask(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(SWITCH, "0")
    GUARD.register(raises(AssertionError("asked")), "nowhere:take_over")
    assert not caplog.records


def test_asking_imports_no_tensor_library() -> None:
    """An engine calls this before it has set up its devices."""
    code = (
        "import sys, quantdispatch.engines.adapters.guard;"
        "print(sorted({'torch', 'transformers', 'compressed_tensors'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
