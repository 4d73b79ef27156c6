"""quantdispatch in vLLM: compressed-tensors checkpoints by quantdispatch's rules, and by its kernels where they serve.

Installing is all: vLLM calls :func:`register` in each of its processes. ``QUANTDISPATCH_VLLM=0`` leaves vLLM as it is.
"""

from __future__ import annotations

from .settings import enabled


def register() -> None:
    """The entry point of group ``vllm.general_plugins``. Never raises: a vLLM that this does not fit starts as without
    it, with one warning."""
    if not enabled():
        return
    from .guard import obstacle, warn_once

    reason = obstacle()
    if reason is None:
        try:
            from .config import take_over

            take_over()
        except Exception as error:  # whatever is wrong with this vLLM, it has to start
            reason = f"{type(error).__name__}: {error}"
    if reason is not None:
        warn_once(reason)
