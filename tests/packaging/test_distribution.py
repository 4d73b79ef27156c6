"""What is installed is what is in the repository, and it is light to import."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import quantdispatch

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NOT_PACKAGED = {"tests", "examples", "benchmarks", "docs", "plugins", "build", "dist"}


def source_packages() -> set[str]:
    """Every folder with an `__init__.py` that is reached from the root through such folders, as a package name."""
    found, folders = {"quantdispatch"}, [(ROOT, "quantdispatch")]
    while folders:
        folder, name = folders.pop()
        for child in folder.iterdir():
            outside = folder == ROOT and (child.name in NOT_PACKAGED or child.name.startswith("."))
            if not outside and (child / "__init__.py").is_file():
                found.add(f"{name}.{child.name}")
                folders.append((child, f"{name}.{child.name}"))
    return found


def test_the_package_list_names_every_package() -> None:
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == source_packages()


def test_versions_agree() -> None:
    assert quantdispatch.__version__ == PROJECT["project"]["version"] == importlib.metadata.version("quantdispatch")


def test_nothing_built_in_is_a_plugin() -> None:
    own = importlib.metadata.distribution("quantdispatch").entry_points.select(group="quantdispatch")
    assert list(own) == []


def test_constraints_are_exact_and_satisfy_the_declared_ranges() -> None:
    from packaging.requirements import Requirement

    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    pins = {}
    for requirement in map(Requirement, lines):
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", requirement
        pins[requirement.name.lower().replace("_", "-")] = specifier.version
    extras = PROJECT["project"]["optional-dependencies"]
    declared = [*PROJECT["project"]["dependencies"], *extras["transformers"], *extras["test"], *extras["dev"]]
    for requirement in map(Requirement, declared):
        name = requirement.name.lower().replace("_", "-")
        if name not in {"quantdispatch", "setuptools"}:
            assert pins[name] in requirement.specifier, requirement


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names in a wheel built from a copy of the sources, with the setuptools at hand and no compiler, which is
    test_native_build's subject."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if tracked.returncode:
        pytest.skip("needs git and a clone: the tracked files are what a distribution is made of")
    for name in filter(None, tracked.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    nothing_compiled = {**os.environ, "CC": "false", "CXX": "false"}
    built = subprocess.run(command, capture_output=True, text=True, check=False, env=nothing_compiled)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def test_the_wheel_holds_the_package_and_nothing_else(wheel: list[str]) -> None:
    modules = {name for name in wheel if name.endswith(".py")}
    folders = {package.replace(".", "/") for package in PROJECT["tool"]["setuptools"]["packages"]}
    assert "quantdispatch/py.typed" in wheel and "quantdispatch/setup.py" not in wheel
    assert {f"{folder}/__init__.py" for folder in folders} <= modules
    assert {str(Path(name).parent) for name in modules} == folders
    assert any(re.fullmatch(r"quantdispatch-[\d.]+\.dist-info/licenses/LICENSE", name) for name in wheel)


IMPORT = """
import json, sys, time
start = time.process_time()
import quantdispatch
seconds = time.process_time() - start
print(json.dumps({"seconds": seconds, "modules": sorted(sys.modules)}))
"""


def run_elsewhere(code: str) -> str:
    """Standard output of `code` in an interpreter of its own, away from the repository."""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd="/")
    assert result.returncode == 0, result.stderr
    return result.stdout


def imported() -> dict:
    return json.loads(run_elsewhere(IMPORT))


def test_import_brings_in_no_heavy_library() -> None:
    heavy = {"torch", "transformers", "compressed_tensors", "numpy", "triton", "huggingface_hub"}
    assert heavy.isdisjoint(imported()["modules"])


def test_import_takes_under_a_quarter_of_a_second_of_cpu() -> None:
    # The least of a few runs: what the machine does beside is no part of the claim.
    assert min(imported()["seconds"] for _ in range(3)) < 0.25


def test_no_module_of_the_registry_imports_a_tensor_library() -> None:
    code = """
import importlib, pkgutil, sys
import quantdispatch.registry as registry
for found in pkgutil.walk_packages(registry.__path__, "quantdispatch.registry."):
    importlib.import_module(found.name)
print(*{"torch", "transformers", "triton", "compressed_tensors"} & set(sys.modules))
"""
    assert run_elsewhere(code).split() == []
