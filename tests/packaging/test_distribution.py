"""What is installed is what is in the repository, and it is light to import."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import quantdispatch

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = set(PROJECT["tool"]["setuptools"]["packages"])
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
    assert PACKAGES == source_packages()


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


#: of the package's folders, not installed: what is compiled, and what is for whoever works on the package
NOT_INSTALLED = re.compile(r"backends/cpu/native/([^/]+\.(cpp|h|inl)|flags\.txt)|setup\.py|noxfile\.py")


def build(source: Path, kind: str, folder: Path) -> Path:
    """With the setuptools at hand and no compiler, which is test_native_build's subject."""
    command = [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", str(folder), str(source)]
    nothing_compiled = {**os.environ, "CC": "false", "CXX": "false"}
    built = subprocess.run(command, capture_output=True, text=True, check=False, env=nothing_compiled)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return path


def contents(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources: building leaves its work in their folder."""
    folder = tmp_path_factory.mktemp("source")
    for name in tracked():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((ROOT / name).read_bytes())
    return folder


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("needs git and a clone: the tracked files are what a distribution is made of")
    return [name for name in filter(None, listed.stdout.decode().split("\0")) if (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names in a wheel that was built from the sources."""
    return contents(build(source, "wheel", tmp_path_factory.mktemp("wheel")))


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: list[str]) -> None:
    top = {package.removeprefix("quantdispatch.").partition(".")[0] for package in PACKAGES} - {"quantdispatch"}
    own = [name for name in tracked() if Path(name).parts[0] in top or name.endswith(".py") and "/" not in name]
    wanted = {f"quantdispatch/{name}" for name in own if not NOT_INSTALLED.fullmatch(name)} | {"quantdispatch/py.typed"}
    assert {name for name in wheel if ".dist-info/" not in name} == wanted
    assert "quantdispatch/cli/templates/plugin/src/package/kernel.py.in" in wanted
    assert any(re.fullmatch(r"quantdispatch-[\d.]+\.dist-info/licenses/LICENSE", name) for name in wheel)


def test_a_source_distribution_makes_the_same_wheel(source: Path, wheel: list[str], tmp_path: Path) -> None:
    with tarfile.open(build(source, "sdist", tmp_path)) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert sorted(contents(build(unpacked, "wheel", tmp_path / "again"))) == sorted(wheel)
    compiled = {name for name in tracked() if NOT_INSTALLED.fullmatch(name) and name != "noxfile.py"}
    assert len(compiled) > 20 and all((unpacked / name).is_file() for name in compiled)


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
