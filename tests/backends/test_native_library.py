"""The native library as Python sees it: its structs, its version, its instruction sets, and libraries with faults."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from quantdispatch import ConfigError
from quantdispatch.backends.cpu.native import library
from quantdispatch.registry.environment import Environment, native_library
from quantdispatch.registry.errors import NoKernelFound
from quantdispatch.registry.values import ABSENT

FOLDER = Path(library.__file__).parent
HEADER = (FOLDER / "abi.h").read_text() if (FOLDER / "abi.h").exists() else ""
COMPILER = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
built = pytest.mark.skipif(native_library() is None, reason="the native kernels were not built")
from_source = pytest.mark.skipif(not HEADER, reason="abi.h is not installed")


@from_source
def test_every_function_of_the_header_has_a_signature() -> None:
    declared = dict(re.findall(r"^\w+ (qd_\w+)\(([^)]*)\);", HEADER, re.MULTILINE))
    assert declared.keys() == library._SIGNATURES.keys()
    for name, arguments in declared.items():
        expected = 0 if arguments.strip() == "void" else arguments.count(",") + 1
        assert len(library._SIGNATURES[name]) == expected, name


@from_source
def test_versions_agree() -> None:
    assert int(re.search(r"define QD_ABI_VERSION (\d+)", HEADER)[1]) == library.ABI_VERSION


@from_source
@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
@pytest.mark.parametrize(("name", "struct"), [("qd_weight", library.Weight), ("qd_inputs", library.Inputs)])
def test_structs_have_the_compilers_layout(name: str, struct: type[ctypes.Structure], tmp_path: Path) -> None:
    fields = [field for field, *_ in struct._fields_]
    offsets = " ".join(f'printf("%zu ", offsetof({name}, {field}));' for field in fields)
    program = tmp_path / "layout.cpp"
    program.write_text(
        f'#include <cstddef>\n#include <cstdio>\n#include "{FOLDER}/abi.h"\n'
        f'int main() {{ {offsets} printf("%zu", sizeof({name})); }}\n'
    )
    subprocess.run([COMPILER, program, "-o", tmp_path / "layout"], check=True)
    told = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True).stdout
    assert [int(n) for n in told.split()] == [*(getattr(struct, f).offset for f in fields), ctypes.sizeof(struct)]


def test_the_environment_knows_whether_it_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fact = "package.quantdispatch-native"
    monkeypatch.setattr("quantdispatch.registry.environment._NATIVE_FOLDER", tmp_path)
    assert Environment.detect("cpu").facts[fact] is ABSENT
    (tmp_path / "_kernels.native.so").touch()
    assert Environment.detect("cpu").facts[fact] == Environment.detect("cuda:sm90").facts[fact] == "0.1.0"
    assert Environment.detect("cpu", {"quantdispatch-native": None}).facts[fact] is ABSENT


def opened(file: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open ``file`` in place of the library, past what is cached."""
    monkeypatch.setattr(library, "native_library", lambda: file)
    library._open.__wrapped__()


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoKernelFound, match="were not built.*; install a C\\+\\+17 compiler"):
        opened(None, monkeypatch)


def test_a_library_that_does_not_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "_kernels.native.so"
    file.write_bytes(b"not a library")
    with pytest.raises(NoKernelFound, match="cannot be loaded"):
        opened(file, monkeypatch)


@built
def test_a_library_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    built = library.ABI_VERSION
    monkeypatch.setattr(library, "ABI_VERSION", built + 1)
    with pytest.raises(NoKernelFound, match=f"another version.*observed {built}, required {built + 1}"):
        opened(native_library(), monkeypatch)


@built
def test_instruction_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    used = library.isa()
    assert library.best_isa() in library.ISAS
    for name in library.ISAS[: library.ISAS.index(library.best_isa()) + 1]:
        library.set_isa(name)
        assert library.isa() == name
    for other in ("sse2", "", *library.ISAS[library.ISAS.index(library.best_isa()) + 1 :]):
        with pytest.raises(ConfigError, match="required one of portable"):
            library.set_isa(other)
    assert library.isa() == library.best_isa()
    library.set_isa(used)  # which on a processor with AVX-512 need not be the last
    monkeypatch.setenv("QUANTDISPATCH_ISA", "sse9")
    with pytest.raises(ConfigError, match="observed sse9.*QUANTDISPATCH_ISA"):
        opened(native_library(), monkeypatch)


@built
def test_reading_memory_gives_the_exclusive_or_of_all_words() -> None:
    words = [1, 2, 4, 1 << 63, *range(100)]
    buffer = (ctypes.c_uint64 * len(words))(*words)
    expected = 0
    for word in words:
        expected ^= word
    for streams in (1, 4):
        for count in (0, 3, len(words)):
            read = library.load().qd_read(ctypes.addressof(buffer), count, streams)
            assert read == (expected if count == len(words) else 7 if count else 0)
