"""What a record cannot say: whether Triton works on the device that is here."""

from __future__ import annotations

import torch


def device() -> str | None:
    """``None`` where Triton can be imported and there is a device to compile for, else the reason."""
    from .compat import INTERPRETED

    if INTERPRETED or torch.cuda.is_available():
        return None
    return "torch sees no CUDA or ROCm device"
