"""The native library is an optional part of the build: with a compiler it is there, without one all else is."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NATIVE = Path("backends/cpu/native")
LIBRARY = "quantdispatch/backends/cpu/native/_kernels.native.so"
#: files that need no other: the whole takes a minute to compile, and the build does not care how much there is
ENOUGH = {"dispatch.cpp", "threads.cpp", "roof.cpp"}
COMPILER = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
#: what an in-place installation runs
EDITABLE = "import setuptools.build_meta as build; build.build_editable('.')"
BUILDS = {
    "wheel": ["-m", "build", "--wheel", "--no-isolation", "--outdir", "dist"],
    "in place": ["-c", EDITABLE],
}


def sources(folder: Path, cpp: set[str] = ENOUGH) -> Path:
    """What a distribution is made of, with few of the native sources."""
    package = folder / "source"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if tracked.returncode:
        pytest.skip("needs git and a clone: the tracked files are what a distribution is made of")
    for name in filter(None, tracked.stdout.decode().split("\0")):
        top = Path(name).parts[0]
        left_out = top in {"tests", "docs", "plugins", "examples", "benchmarks"}
        left_out |= name.endswith(".cpp") and Path(name).name not in cpp
        if (ROOT / name).is_file() and not left_out:
            (package / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, package / name)
    return package


def build(package: Path, how: str, **environment: str) -> str:
    """Its output. Fails where the build does."""
    done = subprocess.run(
        [sys.executable, *BUILDS[how]], cwd=package, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def built(package: Path, how: str) -> Path | None:
    """The library, out of the wheel or beside its sources."""
    if how == "in place":
        file = package / NATIVE / Path(LIBRARY).name
        return file if file.exists() else None
    (wheel,) = (package / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert "quantdispatch/backends/cpu/native/library.py" in archive.namelist()
        not_installed = [name for name in archive.namelist() if name.endswith((".cpp", ".h", ".inl", "flags.txt"))]
        assert not_installed == []
        return Path(archive.extract(LIBRARY, package)) if LIBRARY in archive.namelist() else None


@needs_compiler
@pytest.mark.parametrize("how", BUILDS)
def test_with_a_compiler_the_library_is_built(tmp_path: Path, how: str) -> None:
    package = sources(tmp_path)
    build(package, how)
    file = built(package, how)
    assert file is not None
    library = ctypes.CDLL(str(file))
    assert library.qd_abi_version() >= 1 and library.qd_isa_best() in range(4)
    if how == "wheel":  # one for every Python: it knows nothing of it
        (wheel,) = (package / "dist").glob("*.whl")
        assert "-py3-none-" in wheel.name


@pytest.mark.parametrize("how", BUILDS)
def test_without_a_compiler_the_package_is_built_all_the_same(tmp_path: Path, how: str) -> None:
    package = sources(tmp_path)
    output = build(package, how, CC="false", CXX="false")
    assert built(package, how) is None
    assert 'building extension "quantdispatch.backends.cpu.native._kernels" failed' in output


@needs_compiler
def test_nor_where_the_compiler_fails_halfway(tmp_path: Path) -> None:
    package = sources(tmp_path)
    (package / NATIVE / "threads.cpp").write_text("int f( {\n")
    build(package, "in place")
    assert built(package, "in place") is None


def test_a_source_distribution_has_all_that_is_compiled(tmp_path: Path) -> None:
    package = sources(tmp_path, {path.name for path in (ROOT / NATIVE).glob("*.cpp")})
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", "dist"]
    subprocess.run(command, cwd=package, check=True, capture_output=True)
    (archive,) = (package / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {Path(*Path(name).parts[1:]) for name in opened.getnames()}
    wanted = {path.relative_to(package) for path in (package / NATIVE).iterdir() if path.is_file()}
    assert wanted | {Path("setup.py")} <= names
