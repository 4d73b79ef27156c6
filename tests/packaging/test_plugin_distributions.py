"""The distributions in ``plugins/``: what their entry points name can be collected, and their own tests pass."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from quantdispatch.registry.known_plugins import KNOWN_PLUGINS, TRANSLATORS
from quantdispatch.testing import registry_with

FOLDERS = sorted(path.parent for path in (Path(__file__).resolve().parents[2] / "plugins").glob("*/pyproject.toml"))


def project(folder: Path) -> dict[str, Any]:
    whole: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())
    return whole["project"]


def test_what_errors_tell_to_install_is_here() -> None:
    told = {*TRANSLATORS.values(), *(plugin.distribution for plugin in KNOWN_PLUGINS)}
    assert told and told <= {project(folder)["name"] for folder in FOLDERS}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_entry_points_name_plugins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert project(folder)["name"] == folder.name and (folder / project(folder)["readme"]).is_file()
    monkeypatch.syspath_prepend(folder / "src")
    for module in project(folder).get("entry-points", {}).get("quantdispatch", {}).values():
        (status,) = registry_with(module).plugins
        assert status.state == "ok" and (status.rules or status.kernels)


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_their_own_tests_pass(folder: Path) -> None:
    """In a process of their own: each has its configuration and its helpers."""
    paths = os.pathsep.join([str(folder / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder / "tests")]
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
