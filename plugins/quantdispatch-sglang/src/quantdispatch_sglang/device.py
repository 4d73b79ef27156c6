"""What SGLang runs on here, in quantdispatch's words, and those of its settings that decide which classes it takes."""

from __future__ import annotations

import torch
from sglang.srt.layers.moe import get_moe_runner_backend
from sglang.srt.layers.quantization.fp4_utils import get_fp4_gemm_runner_backend
from sglang.srt.runtime_context import get_exec, get_parallel

from .policy import settings_of


def current_device() -> str:
    """``cpu``, ``cuda:sm90`` or ``rocm``."""
    if not torch.cuda.is_available():
        return "cpu"
    if torch.version.hip is not None:
        return "rocm"
    major, minor = torch.cuda.get_device_capability()
    return f"cuda:sm{major}{minor}"


def current_settings() -> dict[str, str]:
    return settings_of(_value(get_moe_runner_backend()), _value(get_fp4_gemm_runner_backend()))


def speaks() -> bool:
    """Is this the process whose log users read?"""
    try:
        return bool(get_parallel().tp_rank == 0)
    except (RuntimeError, ValueError):  # nothing is distributed yet
        return True


def experts_move() -> bool:
    """Does SGLang move experts between ranks while it serves (``--enable-eplb``)?"""
    return bool(get_exec().moe.enable_eplb)


def _value(backend: object) -> str:
    return str(getattr(backend, "value", backend))
