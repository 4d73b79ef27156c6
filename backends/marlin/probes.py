"""Does a provider work here? Asked when a layer is bound, never when a plan is explained."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ...registry.errors import QuantDispatchError
from .providers import adapter


def vllm() -> str | None:
    """``None`` where vLLM's dense op is there and as recorded, else what is wrong."""
    return _fault("vllm", moe=False)


def vllm_moe() -> str | None:
    return _fault("vllm", moe=True)


def sglang() -> str | None:
    """SGLang compiles its kernels when they are first called, so the compiler has to be there."""
    return _fault("sglang", moe=False) or _no_compiler()


def sglang_moe() -> str | None:
    return _fault("sglang", moe=True) or _no_compiler()


def _fault(provider: str, moe: bool) -> str | None:
    try:
        ops = adapter(provider)
        if moe:
            ops.check_moe()
    except QuantDispatchError as error:
        return str(error)
    return None


def _no_compiler() -> str | None:
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    found = shutil.which("nvcc") or any(
        home and Path(home, "bin", "nvcc").exists() for home in (*homes, "/usr/local/cuda")
    )
    return None if found else "nvcc is not there, with which SGLang compiles its kernels"
