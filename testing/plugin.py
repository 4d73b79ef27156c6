"""The pytest plugin: collects dispatch tables as they are, runs their mutation check when asked to, and writes the
report of conformance classes.

pytest loads this in every project of the environment, so it imports nothing until a table is met. That includes pytest
itself: every module of this package can be imported where pytest is not installed.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

from pluggy import HookimplMarker

if TYPE_CHECKING:
    import pytest

FILES = "dispatch_files"
MUTATE = "--dispatch-mutate"
REPORT = "--quantdispatch-report"
_PATTERNS = ("*.dispatch.toml", "*.dispatch.json")

hookimpl = HookimplMarker("pytest")


@hookimpl
def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        FILES,
        "names of dispatch tables that are collected as they are (patterns; with a slash: of paths from the root)",
        type="args",
        default=list(_PATTERNS),
    )
    options = parser.getgroup("quantdispatch")
    options.addoption(
        REPORT, metavar="FILE", default=None, help="write what conformance classes found to FILE, as one JSON document"
    )
    options.addoption(
        MUTATE,
        choices=("live", "strict"),
        nargs="?",
        const="live",
        default=None,
        help="also check that every row of a dispatch table can fail: each expectation changed must fail, and changed "
        "facts must matter (strict: all that a row does not call insensitive)",
    )


@hookimpl
def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption(REPORT)
    # a worker of pytest-xdist hands its results to the process that started it
    if path and not hasattr(config, "workerinput"):
        from .conformance_report import ReportWriter

        config.pluginmanager.register(ReportWriter(config.invocation_params.dir / path), "quantdispatch-report")


@hookimpl
def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    patterns = parent.config.getini(FILES)
    if not any(_matches(file_path, pattern, parent.config.rootpath) for pattern in patterns):
        return None
    from .collecting import table_file

    return table_file(file_path, parent)


def _matches(path: Path, pattern: str, root: Path) -> bool:
    if "/" not in pattern:
        return fnmatch.fnmatch(path.name, pattern)
    return path.is_relative_to(root) and fnmatch.fnmatch(path.relative_to(root).as_posix(), pattern)


@hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    mode = item.config.getoption(MUTATE)
    if mode is not None:
        from .collecting import rows_of

        rows = rows_of(item)
        if rows:
            from .mutating import check_mutations

            check_mutations(rows, strict=mode == "strict")
    return result
