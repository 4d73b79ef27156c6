"""A step whose tool is missing fails; only where no package of the tool exists does it say so and go on."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
from pathlib import Path

import optional_tools as tools
import pytest

ROOT = Path(__file__).parents[2]
X86 = {
    "implementation_name": "cpython",
    "python_version": "3.11",
    "sys_platform": "linux",
    "platform_machine": "x86_64",
}
ARM = X86 | {"platform_machine": "aarch64"}
#: tool, platform, asked for there
PLATFORMS = [
    ("jscpd", X86, True),
    ("jscpd", ARM, False),
    ("jscpd", ARM | {"sys_platform": "darwin"}, True),
    ("atheris", X86, True),
    ("atheris", ARM, False),
    ("atheris", X86 | {"python_version": "3.14"}, False),
    ("ruff", ARM, True),
]


@pytest.mark.parametrize(("tool", "environment", "wanted"), PLATFORMS)
def test_platforms_with_a_package(tool: str, environment: dict[str, str], wanted: bool) -> None:
    assert tools.asked_for(tool, environment) == ("fuzz" if tool == "atheris" else "dev", wanted)


def test_a_tool_nobody_asks_for() -> None:
    with pytest.raises(LookupError, match="no extra"):
        tools.asked_for("hammer")


@pytest.mark.parametrize(
    ("installed", "wanted", "status", "said"),
    [
        (True, True, 0, "ruff 1"),
        (True, False, 0, "ruff 1"),
        (False, True, 1, "pip install"),
        (False, False, 3, "NOT RUN"),
    ],
)
def test_states(installed: bool, wanted: bool, status: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if not installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(tools, "asked_for", lambda name: ("dev", wanted))
    found, line = tools.state("ruff")
    assert found == status and said in line


@pytest.mark.parametrize(("status", "ends"), [(0, 0), (1, 2), (3, 0)])
@pytest.mark.parametrize(("target", "starts"), [("duplicates", "bin/jscpd"), ("fuzz", "bin/python tests/fuzz/run.py")])
def test_what_make_does(target: str, starts: str, status: int, ends: int, tmp_path: Path) -> None:
    """With programs in place of Python and the tool that tell what they are asked, and end as said."""
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / ".installed").touch()
    for name, code in (("python", f'case "$*" in *optional_tools*) exit {status};; esac'), ("jscpd", "exit 0")):
        program = venv / "bin" / name
        program.write_text(f'#!/bin/sh\necho "bin/{name} $*"\n{code}\n')
        program.chmod(0o755)
    command = ["make", "--silent", f"VENV={venv}", "STAMP=", target]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "MAKEFLAGS": ""}, capture_output=True, text=True)
    assert done.returncode == ends, done.stdout + done.stderr
    assert "optional_tools.py" in done.stdout and (starts in done.stdout) == (status == 0)
