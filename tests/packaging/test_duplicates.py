"""Duplicated code is reported, and over 1 % of it is an error: `.jscpd.json`, `make duplicates`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETTINGS = json.loads((ROOT / ".jscpd.json").read_text())
JSCPD = shutil.which("jscpd", path=sysconfig.get_path("scripts"))
pytestmark = pytest.mark.skipif(JSCPD is None, reason="jscpd, of the extra dev, is not installed")


def report(folder: Path, out: Path) -> tuple[int, dict[str, float]]:
    """The exit status and the totals of the project's own settings in ``folder``."""
    command = [str(JSCPD), "--no-tips", "--reporters", "json,threshold", "--output", str(out)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.returncode, json.loads((out / "jscpd-report.json").read_text())["statistics"]["total"]


def test_the_sources_have_few_duplicates(tmp_path: Path) -> None:
    assert SETTINGS["threshold"] <= 1
    status, total = report(ROOT, tmp_path)
    assert total["sources"] > 300  # the plugins and the C++ sources too
    assert status == 0 and total["percentage"] < 1


@pytest.mark.parametrize("file", ["backends/cpu/linear.py", "backends/cpu/native/layout.cpp"])
def test_a_copied_file_is_an_error(file: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / ".jscpd.json", tmp_path)
    for name in SETTINGS["path"]:
        (tmp_path / name).mkdir(exist_ok=True)
    for name in ("one", "another"):
        shutil.copy(ROOT / file, tmp_path / "backends" / f"{name}{Path(file).suffix}")
    status, total = report(tmp_path, tmp_path / "out")
    assert status != 0 and total["percentage"] > 40
