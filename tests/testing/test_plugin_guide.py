"""docs/plugin-authors.md: each command runs, each line of its diff applies, and the kit passes before and after."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "plugin-authors.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(console|diff)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
BIN = Path(sys.executable).parent


def steps() -> Iterator[tuple[str, str]]:
    """Kind and text of every command and diff, in order."""
    for kind, text in BLOCKS:
        if kind == "diff":
            yield kind, text
            continue
        for line in text.splitlines():
            assert line.startswith("$ "), f"no command: {line}"
            yield kind, line.removeprefix("$ ")


def environment(site: Path) -> dict[str, str]:
    """Commands find the plugin where pip puts it, in a folder of its own; pip may ask nobody for anything."""
    own = {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1",
        "PIP_TARGET": str(site), "PIP_UPGRADE": "1", "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_QUIET": "1",
        # pip's spelling of --no-build-isolation
        "PIP_NO_BUILD_ISOLATION": "false", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore",
        "PYTEST_ADDOPTS": "-p no:cacheprovider -p no:randomly", "OMP_NUM_THREADS": "1", "COLUMNS": "160",
    }  # fmt: skip
    return {**os.environ, **own}


def run(command: str, folder: Path, given: dict[str, str], text: str | None = None) -> str:
    done = subprocess.run(
        command, shell=True, cwd=folder, env=given, input=text, capture_output=True, text=True, timeout=300
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_the_edit_is_of_fewer_than_20_lines() -> None:
    (diff,) = (text for kind, text in BLOCKS if kind == "diff")
    lines = diff.splitlines()
    added = [line for line in lines if line.startswith("+") and not line.startswith("+++")]
    taken = [line for line in lines if line.startswith("-") and not line.startswith("---")]
    assert 0 < len(taken) <= len(added) < 20


@pytest.mark.skipif(subprocess.run([BIN / "pip", "--version"], capture_output=True).returncode != 0, reason="no pip")
def test_every_command_and_the_edit(tmp_path: Path) -> None:
    folder, site = tmp_path, tmp_path / "site"
    given, reports, outputs = environment(site), [], {}
    for kind, text in steps():
        if kind == "diff":
            run("git apply --unidiff-zero -", folder, given, text)
        elif text.startswith("cd "):
            folder = folder / text.removeprefix("cd ")
        else:
            outputs[text] = run(text, folder, given)
        if text.startswith("pytest"):
            reports.append(json.loads((folder / "report.json").read_text()))
    assert len(reports) == 2
    for report, args in zip(reports, ("int8 symmetric, channel", "int4 symmetric, group"), strict=True):
        assert report["passed"] and {s["kind"] for s in report["subjects"]} == {"scheme", "backend"}
        layers = {check["layer"] for subject in report["subjects"] for check in subject["checks"] if check["layer"]}
        assert layers and all(layer.startswith(args) for layer in layers)
    assert "my-kernels" in outputs["quantdispatch doctor"]
    names = {file.name for file in (folder / "dist").iterdir()}
    assert names == {"my_kernels-0.1.0-py3-none-any.whl", "my_kernels-0.1.0.tar.gz"}
