"""The shared library of native kernels: its C ABI (abi.h) through ctypes.

A call releases Python's lock. Pointers are ``Tensor.data_ptr()``; the caller keeps the tensors alive and contiguous.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

from ....registry.environment import native_library
from ....registry.errors import ConfigError, NoKernelFound

ABI_VERSION = 2
#: by number, from the slowest: qd_isa of abi.h
ISAS = ("portable", "avx2", "avx512", "avx512_vnni")
REMEDY = "install a C++17 compiler (g++ or clang++) and reinstall quantdispatch from source"


class Weight(ctypes.Structure):
    """``qd_weight``: a packed weight of ``n`` outputs and ``k`` inputs."""

    _fields_ = [
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("group", ctypes.c_int64),
        ("groups", ctypes.c_int64),
        ("format", ctypes.c_int32),
        ("slot_bits", ctypes.c_int32),
        ("scale_dtype", ctypes.c_int32),
        ("zero_bits", ctypes.c_int32),
        ("unit", ctypes.c_float),
        ("reserved", ctypes.c_int32),
        ("packed", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("zero", ctypes.c_void_p),
        ("columns", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    ]


class Inputs(ctypes.Structure):
    """``qd_inputs``: how activations are quantized."""

    _fields_ = [
        ("bits", ctypes.c_int32),
        ("symmetric", ctypes.c_int32),
        ("dynamic", ctypes.c_int32),
        ("per_tensor", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("zero_point", ctypes.c_float),
    ]


_WEIGHT, _POINTER, _LONG, _INT = ctypes.POINTER(Weight), ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_ROWS = (_POINTER, _LONG, _LONG)  # address, rows, stride in elements
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "qd_linear": (_WEIGHT, *_ROWS, _POINTER, _LONG, _INT, _INT),
    "qd_linear_int8": (_WEIGHT, ctypes.POINTER(Inputs), *_ROWS, _POINTER, _LONG, _INT, _INT),
    "qd_moe": (
        *(_WEIGHT, _WEIGHT, _WEIGHT, _LONG, _INT, *_ROWS, _POINTER, _POINTER, _LONG),
        *(_POINTER, _LONG, _INT, _INT),
    ),
    "qd_dense": (_POINTER, _LONG, _LONG, _LONG, _POINTER, *_ROWS, _POINTER, _LONG, _INT),
    "qd_pack": (_WEIGHT, _POINTER, _POINTER, _INT),
    "qd_any_nan": (_POINTER, _LONG),
    "qd_unpack": (_WEIGHT, _POINTER, _INT),
    "qd_unpack_rows": (_WEIGHT, _POINTER, _LONG, _POINTER),
    "qd_abi_version": (),
    "qd_isa": (),
    "qd_isa_best": (),
    "qd_set_isa": (_INT,),
    "qd_set_pool": (_POINTER, _POINTER),
    "qd_read": (_POINTER, _LONG, _INT),
}
_RESULTS = {"qd_set_pool": None, "qd_read": ctypes.c_uint64}


@cache
def load() -> ctypes.CDLL:
    """The library, with signatures, on torch's thread pool.

    Raises ``NoKernelFound`` where there is none, or one that is not of this version or cannot be loaded, and
    ``ConfigError`` where QUANTDISPATCH_ISA names an instruction set that is unknown or not this processor's.
    """
    library = _open()
    library.qd_set_pool(*_torch_pool())
    return library


@cache
def _open() -> ctypes.CDLL:
    file = native_library()
    if file is None:
        raise NoKernelFound(
            "the native CPU kernels were not built", field="native library", observed="none",
            required=f"one of ABI version {ABI_VERSION}", remedy=REMEDY, code="QD752",
        )  # fmt: skip
    try:
        library = ctypes.CDLL(str(file))
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, _RESULTS.get(name, ctypes.c_int32)
    except (OSError, AttributeError) as error:
        raise NoKernelFound(
            f"the native CPU kernels cannot be loaded: {error}", field=file.name, observed=str(error),
            required=f"a library of ABI version {ABI_VERSION}", remedy=REMEDY, code="QD752",
        ) from error  # fmt: skip
    version = library.qd_abi_version()
    if version != ABI_VERSION:
        raise NoKernelFound(
            "the native CPU kernels are of another version of quantdispatch",
            field="ABI version", observed=version, required=ABI_VERSION, remedy=REMEDY, code="QD752",
        )  # fmt: skip
    wanted = os.environ.get("QUANTDISPATCH_ISA", "")
    if wanted and wanted != ISAS[library.qd_isa()]:
        raise _no_isa(wanted, library.qd_isa_best())
    return library


def isa() -> str:
    """The instruction set in use: ``"avx512_vnni"`` or ``"avx512"`` (products of bytes, or of bf16), ``"avx2"`` or
    ``"portable"``."""
    return ISAS[_open().qd_isa()]


def best_isa() -> str:
    """The widest that this processor has."""
    return ISAS[_open().qd_isa_best()]


def set_isa(name: str) -> None:
    """Use another one from the next call on, in all threads. Raises ``ConfigError`` where the processor lacks it."""
    if name not in ISAS or _open().qd_set_isa(ISAS.index(name)):
        raise _no_isa(name, _open().qd_isa_best())


def shares_pool() -> bool:
    """Do kernels run on torch's OpenMP threads? If not, they start plain threads of their own for each call."""
    return _torch_pool()[0] is not None


def _no_isa(name: str, best: int) -> ConfigError:
    return ConfigError(
        "no such instruction set on this processor",
        field="QUANTDISPATCH_ISA", observed=name, required=f"one of {', '.join(ISAS[: best + 1])}", code="QD528",
    )  # fmt: skip


@cache
def _torch_pool() -> tuple[int | None, int | None]:
    """Addresses of GOMP_parallel and omp_get_thread_num as torch calls them, or nothing.

    The linker's own order: what the process shows to all (a preloaded runtime comes first there), then what torch's
    library brings.
    """
    import torch

    folder = Path(torch.__file__).parent / "lib"
    for name in (None, *(str(folder / f"libtorch_cpu.{ending}") for ending in ("so", "dylib"))):
        if os.name == "nt" or (name is not None and not os.path.exists(name)):
            continue
        try:
            runtime = ctypes.CDLL(name)
            functions = runtime.GOMP_parallel, runtime.omp_get_thread_num
        except (OSError, AttributeError):
            continue
        parallel, number = (ctypes.cast(function, ctypes.c_void_p).value for function in functions)
        return parallel, number
    return None, None
