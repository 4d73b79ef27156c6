"""quantdispatch in vLLM: compressed-tensors checkpoints by quantdispatch's rules, and by its kernels where they serve.

Installing is all: vLLM calls :func:`register` in each of its processes. ``QUANTDISPATCH_VLLM=0`` leaves vLLM as it is.
"""

from __future__ import annotations

import logging


def register() -> None:
    """The entry point of group ``vllm.general_plugins``. Never raises: a vLLM that this does not fit starts as without
    it, with one warning."""
    try:
        from .guard import GUARD, obstacle
    except Exception as error:  # the base package is missing, or of another release
        logging.getLogger("vllm.plugins.quantdispatch").warning("quantdispatch is left out: %s", error)
        return
    GUARD.register(obstacle, "quantdispatch_vllm.config:take_over")
