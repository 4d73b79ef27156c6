"""``python -m quantdispatch.backends.cpu.native.selftest``: do the native kernels work here? One line of JSON.

``quantdispatch doctor`` runs it in a process of its own: a broken torch or library must not take the doctor down.
"""

from __future__ import annotations

import json

import torch

from . import library, probe


def report() -> dict[str, object]:
    """``error`` (``None`` where all is well), and with a library that loads ``isa``, ``best_isa``, ``shares_pool``,
    ``threads``."""
    error = probe.linear()
    try:
        facts: dict[str, object] = {"isa": library.isa(), "best_isa": library.best_isa()}
    except Exception as failure:
        return {"error": error or str(failure)}
    return {"error": error, **facts, "shares_pool": library.shares_pool(), "threads": torch.get_num_threads()}


if __name__ == "__main__":
    print(json.dumps(report()))
