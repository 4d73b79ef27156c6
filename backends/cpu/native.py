"""What this processor computes natively, asked of the libraries once."""

from __future__ import annotations

from functools import cache

import torch


@cache
def native_bf16() -> bool:
    """Does a bf16 product run on bf16 instructions? Without them it is slower than fp32 by up to seven times."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
