"""``--quantdispatch-report FILE``: the results of conformance classes in a pytest run, as one JSON document.

Each test carries its result as a user property, which pytest-xdist hands from its workers to the process that writes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pluggy import HookimplMarker

if TYPE_CHECKING:
    import pytest

PROPERTY = "quantdispatch"
hookimpl = HookimplMarker("pytest")


class ReportWriter:
    """A pytest plugin that collects results and writes ``path`` when the session ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: list[dict[str, Any]] = []

    @hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            properties: list[tuple[str, Any]] = report.user_properties
            self.records += [value for name, value in properties if name == PROPERTY]

    @hookimpl
    def pytest_sessionfinish(self) -> None:
        from .conformance.report import document

        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(document(self.records), indent=1) + "\n", encoding="utf-8")

    @hookimpl
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        subjects = {record["name"] for record in self.records}
        terminalreporter.write_line(
            f"conformance report of {len(self.records)} checks of {len(subjects)} subjects: {self.path}"
        )
