"""These tests need no SGLang: what they try is what decides before any of its code runs. Those that need it are in
``tests_engine``, run by ``make test-engine-sglang``."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUANTDISPATCH_SGLANG", "QUANTDISPATCH_SGLANG_WARNED"):
        # set first, so that what a test leaves behind is taken away again
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
