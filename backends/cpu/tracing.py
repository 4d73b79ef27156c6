"""Is a call being recorded, so that it must be an operator that the recorder sees?"""

from __future__ import annotations

import torch


def recording() -> bool:
    """Under torch.compile, ``torch.jit.trace`` and dispatch modes such as ``make_fx``'s: a call through ctypes would
    leave no trace there, and its result would be recorded as memory that nobody fills."""
    if torch.compiler.is_compiling():
        return True
    return torch._C._get_tracing_state() is not None or torch._C._len_torch_dispatch_stack() > 0
