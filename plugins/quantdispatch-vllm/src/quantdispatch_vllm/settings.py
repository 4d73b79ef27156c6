"""What users set, by environment variables: vLLM hands them on to its processes."""

from __future__ import annotations

import os

ENABLED = "QUANTDISPATCH_VLLM"
KERNELS = "QUANTDISPATCH_VLLM_KERNELS"
ORDERS = ("auto", "first", "last")


def order() -> str:
    """Where quantdispatch's kernels stand: ``first``, ``last`` (they serve what vLLM refuses), or ``auto``: first on
    the CPU where they are compiled code, last elsewhere. Raises ``ValueError`` for anything else."""
    value = os.environ.get(KERNELS, "auto")
    if value not in ORDERS:
        raise ValueError(f"{KERNELS}={value!r}: one of {', '.join(ORDERS)}")
    return value
