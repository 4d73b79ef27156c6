"""quantdispatch in SGLang: compressed-tensors checkpoints by quantdispatch's rules, and by its kernels where SGLang has
no class with the same numeric contract.

Installing is all: SGLang calls :func:`register` in each of its processes. ``QUANTDISPATCH_SGLANG=0`` leaves SGLang as
it is.
"""

from __future__ import annotations


def register() -> None:
    """The entry point of group ``sglang.srt.plugins``. Never raises: an SGLang that this does not fit starts as without
    it, with one warning."""
    from .guard import GUARD, obstacle

    GUARD.register(obstacle, "quantdispatch_sglang.config:take_over")
