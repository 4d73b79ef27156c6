"""The distributions that engines load by themselves: the extras bring them, the base package is none, and they come and
go without a trace."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
#: of each engine, the group of entry points that it loads in its processes
GROUPS = {"vllm": "vllm.general_plugins", "sglang": "sglang.srt.plugins"}


def project(folder: Path) -> dict[str, Any]:
    whole: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return whole


@pytest.mark.parametrize("engine", GROUPS)
def test_an_extra_brings_the_distribution_and_nothing_else_does(engine: str) -> None:
    base, own = project(ROOT), project(ROOT / "plugins" / f"quantdispatch-{engine}")
    (extra,) = map(Requirement, base["optional-dependencies"][engine])
    assert extra.name == own["name"] and own["version"] in extra.specifier
    others = [text for name, texts in base["optional-dependencies"].items() if name not in GROUPS for text in texts]
    assert not any(Requirement(text).name == own["name"] for text in (*base["dependencies"], *others))


@pytest.mark.parametrize("engine", GROUPS)
def test_it_requires_the_base_and_no_engine(engine: str) -> None:
    """Which engine, and which torch, is there is not for a plugin to decide."""
    own = project(ROOT / "plugins" / f"quantdispatch-{engine}")
    (required,) = map(Requirement, own["dependencies"])
    assert required.name == "quantdispatch" and project(ROOT)["version"] in required.specifier


def test_the_base_package_alone_changes_no_engine() -> None:
    """An engine finds what changes it by entry points, and the base package has none that any engine reads."""
    declared = project(ROOT)
    assert set(declared["entry-points"]) == {"pytest11"} and set(declared["scripts"]) == {"quantdispatch"}
    installed = {point.group for point in importlib.metadata.distribution("quantdispatch").entry_points}
    assert installed == {"pytest11", "console_scripts"}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    return folder


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def found(python: Path, group: str) -> dict[str, str]:
    code = (
        "import importlib.metadata as m, json;"
        f"print(json.dumps({{p.name: p.value for p in m.entry_points(group={group!r})}}))"
    )
    values: dict[str, str] = json.loads(run(str(python), "-c", code))
    return values


@pytest.mark.parametrize("engine", GROUPS)
def test_installed_an_engine_finds_it_and_uninstalled_nothing_is_left(
    engine: str, environment: Path, tmp_path: Path
) -> None:
    name, python = f"quantdispatch-{engine}", environment / "bin" / "python"
    # building leaves its work in the sources' folder
    shutil.copytree(ROOT / "plugins" / name, tmp_path / name, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(tmp_path / name))
    (wheel,) = tmp_path.glob("*.whl")
    pip = (sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check")
    before = files(environment)
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", "--no-compile", str(wheel))
    assert found(python, GROUPS[engine]) == {"quantdispatch": f"{name.replace('-', '_')}:register"}
    assert all(found(python, group) == {} for other, group in GROUPS.items() if other != engine)
    run(*pip, "uninstall", "--quiet", "--yes", name)
    assert files(environment) == before and found(python, GROUPS[engine]) == {}


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
