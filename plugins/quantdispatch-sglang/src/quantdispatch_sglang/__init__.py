"""quantdispatch in SGLang: compressed-tensors checkpoints by quantdispatch's rules, and by its kernels where SGLang has
no class with the same numeric contract.

Installing is all: SGLang calls :func:`register` in each of its processes. ``QUANTDISPATCH_SGLANG=0`` leaves SGLang as
it is.
"""

from __future__ import annotations

import logging


def register() -> None:
    """The entry point of group ``sglang.srt.plugins``. Never raises: an SGLang that this does not fit starts as without
    it, with one warning."""
    try:
        from .guard import GUARD, obstacle
    except Exception as error:  # the base package is missing, or of another release
        logging.getLogger("sglang.srt.plugins.quantdispatch").warning("quantdispatch is left out: %s", error)
        return
    GUARD.register(obstacle, "quantdispatch_sglang.config:take_over")
