"""Fifty installed plugins: all found without an import, each description read once, each plugin whole.

``python -m benchmarks plugin_collection`` says what that costs.
"""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from benchmarks.plugin_collection import PLUGINS, install
from quantdispatch.registry import plugins
from quantdispatch.registry.registry import build


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[plugins.Source]:
    install(tmp_path, PLUGINS)
    monkeypatch.syspath_prepend(str(tmp_path))
    reads: list[str] = []
    read_text = importlib.metadata.PathDistribution.read_text

    def counted(self: importlib.metadata.PathDistribution, filename: str) -> str | None:
        if filename == "METADATA" and str(getattr(self, "_path", "")).startswith(str(tmp_path)):
            reads.append(str(getattr(self, "_path", "")))
        return read_text(self, filename)

    monkeypatch.setattr(importlib.metadata.PathDistribution, "read_text", counted)
    found = [source for source in plugins.installed_plugins() if source.name.startswith("measured_")]
    assert len(reads) == len(set(reads)) == PLUGINS
    return found


def test_finding_them_imports_none(sources: list[plugins.Source]) -> None:
    assert len(sources) == PLUGINS
    assert {(source.distribution, source.version) for source in sources} == {(s.name, "1.0") for s in sources}
    assert not [name for name in sys.modules if name.startswith("measured_")]


def test_each_is_collected_and_nothing_of_another(sources: list[plugins.Source]) -> None:
    try:
        table = build(sources)
        collected = [plugins.collect(source) for source in sources]
    finally:
        for name in [name for name in sys.modules if name.startswith("measured_")]:
            del sys.modules[name]
    for source, one in zip(sources, collected, strict=True):
        number = source.name.removeprefix("measured_")
        assert one.status.state == "ok" and one.status.rules == (f"rule-{number}",)
        assert [rule.distribution for rule in one.rules] == [source.name] and not one.kernels
    assert {f"rule-{number}" for number in range(PLUGINS)} <= {rule.name for rule in table.rules.rules}
