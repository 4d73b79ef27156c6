"""Whatever the adapter relies on is gone or has changed in vLLM: vLLM starts as without it, with one warning.

With stand-ins that have the signatures recorded of vLLM 0.32 (``vllm-0.32.json``), changed one by one.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import quantdispatch_vllm
from engine_signatures import change, changes, stand_ins
from quantdispatch_vllm import guard

RECORDED = json.loads((Path(__file__).parent / "vllm-0.32.json").read_text())


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """What would be imported, were it installed."""
    modules = stand_ins(RECORDED)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(guard, "installed", lambda: "0.32.0")
    return modules


def test_all_that_is_relied_on_is_recorded() -> None:
    assert {name: set(paths) for name, paths in guard.NEEDED.items()} == {n: set(p) for n, p in RECORDED.items()}


def test_vllm_as_it_was_recorded_fits(engine: dict[str, ModuleType]) -> None:
    assert guard.obstacle() is None


@pytest.mark.parametrize(("module", "path", "signature", "says"), [*changes(RECORDED, guard.NEEDED)])
def test_a_change_is_one_warning(
    module: str, path: str, signature: str, says: str, engine: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    change(engine[module], path, signature)
    before = {name: dict(vars(stand_in)) for name, stand_in in engine.items()}
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            quantdispatch_vllm.register()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert says in caplog.text and "vLLM goes on without it" in caplog.text
    assert {name: dict(vars(stand_in)) for name, stand_in in engine.items()} == before


@pytest.mark.parametrize("module", RECORDED)
def test_a_module_that_is_gone_is_one_warning(
    module: str, engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    quantdispatch_vllm.register()
    assert len(caplog.records) == 1 and f"{module} cannot be imported" in caplog.text
