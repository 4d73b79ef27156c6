"""The native library with its AVX-512 kernels compiled against SIMDe, which runs them on any processor with AVX2.

What is compiled is the shipped source, so this proves that it is right; how fast it is, only such a processor tells.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from quantdispatch.backends.cpu.native.library import _RESULTS, _SIGNATURES

ROOT = Path(__file__).parents[2]
KERNELS, STAND_INS = ROOT / "backends/cpu/native", ROOT / "tests/native"
CACHE = ROOT / ".cache" / "emulated-avx512"
SIMDE = ("/usr/include/simde/x86/avx512.h", "/usr/local/include/simde/x86/avx512.h")
EMULATED = ("avx512.cpp", "avx512_fixed.cpp", "int8_avx512.cpp")
AS_THEY_ARE = ("linear.cpp", "layout.cpp", "portable.cpp", "threads.cpp", "int8.cpp", "int8_portable.cpp")
FLAGS = "-O1 -g0 -std=c++17 -pthread -fPIC -fvisibility=hidden -fno-math-errno -ffp-contract=off -Wall -Wextra -Werror"
NATIVE = "-mavx2 -mfma -mf16c -DQD_EMULATE -Wno-psabi"


def why_not() -> str | None:
    """What is missing here, if anything."""
    if compiler() is None:
        return "there is no C++ compiler"
    if not any(os.path.exists(header) for header in SIMDE):
        return "SIMDe is not installed (libsimde-dev)"
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return "the processor's features are unknown"
    return None if {"avx2", "fma", "f16c"} <= set(flags) else "the processor has no AVX2"


def compiler() -> str | None:
    return shutil.which(os.environ.get("CXX", "g++"))


def load() -> ctypes.CDLL:
    """The library; each file is compiled once for every state of it and the headers (half a minute for all)."""
    CACHE.mkdir(parents=True, exist_ok=True)
    headers = sorted(path for folder in (KERNELS, STAND_INS) for path in folder.glob("*.h"))
    shared = b"".join(path.read_bytes() for path in (*headers, Path(__file__)))
    sources = [
        *((KERNELS / name, NATIVE.split()) for name in EMULATED),
        *((KERNELS / name, []) for name in AS_THEY_ARE),
        (STAND_INS / "avx512_dispatch.cpp", []),
    ]
    objects = [CACHE / f"{path.stem}-{digest(shared + path.read_bytes())}.o" for path, _ in sources]
    file = CACHE / f"{digest(' '.join(map(str, objects)).encode())}.so"
    for old in CACHE.iterdir():
        if old not in (*objects, file):
            old.unlink(missing_ok=True)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(
            pool.map(
                lambda pair: compile_to(pair[1], ["-c", str(pair[0][0]), *pair[0][1]]),
                zip(sources, objects, strict=True),
            )
        )
    compile_to(file, ["-shared", *map(str, objects)])
    library = ctypes.CDLL(str(file))
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, name, None)
        if function is not None:
            function.argtypes, function.restype = arguments, _RESULTS.get(name, ctypes.c_int32)
    return library


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def compile_to(file: Path, arguments: list[str]) -> None:
    """Unless the file is there, whole."""
    if file.exists():
        return
    part = file.with_suffix(f".{os.getpid()}")
    run([str(compiler()), *FLAGS.split(), f"-I{KERNELS}", f"-I{STAND_INS}", *arguments, "-o", str(part)])
    os.replace(part, file)


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr[-4000:]}"
