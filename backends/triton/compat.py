"""Where Triton 3.6 to 3.9 differ, and what is asked of Triton outside of kernels. Imports triton."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

#: (3, 6) and the like: a development build's suffix is left out
VERSION: tuple[int, int] = tuple(int(part) for part in triton.__version__.split(".")[:2])  # type: ignore[assignment]
#: are kernels run by Triton's interpreter, on the CPU? Decided when a kernel's module is imported.
INTERPRETED: bool = os.environ.get("TRITON_INTERPRET", "0") == "1"

#: family of devices to what Triton calls it, and the threads of a warp
TARGETS: Mapping[str, GPUTarget] = {
    "sm80": GPUTarget("cuda", 80, 32),
    "sm89": GPUTarget("cuda", 89, 32),
    "sm90": GPUTarget("cuda", 90, 32),
    "sm100": GPUTarget("cuda", 100, 32),
    "sm120": GPUTarget("cuda", 120, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}


def compile_for(
    family: str,
    function: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, Any],
    *,
    divisible: frozenset[str] = frozenset(),
    warps: int = 4,
    stages: int = 3,
) -> Any:
    """A kernel compiled ahead of time for ``family``; no device is needed.

    ``signature``: the type of every parameter that is no constant (``"*fp16"``, ``"i32"``). ``divisible``: names of
    parameters that a launch would find to be multiples of 16, which decides how wide loads are. The result has ``asm``
    (``"ptx"`` or ``"amdgcn"``, ``"ttgir"``) and ``metadata`` (``shared``, ``num_warps``). Raises Triton's own errors.
    """
    names = function.arg_names
    types = {name: "constexpr" if name in constants else signature[name] for name in names}
    attributes = {
        (names.index(name),): [["tt.divisibility", 16]]
        for name in names
        if name in divisible and types[name] != "constexpr"
    }
    source = ASTSource(
        fn=function,
        signature=types,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs=attributes,
    )
    return triton.compile(source, target=TARGETS[family], options={"num_warps": warps, "num_stages": stages})


def disable_cache() -> None:
    """Compile every kernel anew, whatever is in Triton's cache on disk."""
    importlib.import_module("triton.knobs").compilation.always_compile = True
