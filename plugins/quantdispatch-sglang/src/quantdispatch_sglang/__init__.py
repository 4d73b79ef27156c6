"""quantdispatch in SGLang: compressed-tensors checkpoints by quantdispatch's rules, and by its kernels where SGLang has
no class with the same numeric contract.

Installing is all: SGLang calls :func:`register` in each of its processes. ``QUANTDISPATCH_SGLANG=0`` leaves SGLang as
it is.
"""

from __future__ import annotations

import os

ENABLED = "QUANTDISPATCH_SGLANG"


def register() -> None:
    """The entry point of group ``sglang.srt.plugins``. Never raises: an SGLang that this does not fit starts as without
    it, with one warning."""
    if os.environ.get(ENABLED, "1") == "0":
        return
    from .guard import obstacle, warn_once

    reason = obstacle()
    if reason is None:
        try:
            from .config import take_over

            take_over()
        except Exception as error:  # whatever is wrong with this SGLang, it has to start
            reason = f"{type(error).__name__}: {error}"
    if reason is not None:
        warn_once(reason)
