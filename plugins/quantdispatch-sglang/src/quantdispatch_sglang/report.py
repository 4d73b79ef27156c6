"""One line for SGLang's log: how many layers go by which scheme and kernel, and the command that explains them."""

from __future__ import annotations

import logging
from collections import Counter

LOG = logging.getLogger("sglang.srt.plugins.quantdispatch")


class Report:
    """Collects while modules are built and loaded. ``source``: what to explain."""

    def __init__(self, source: str = "") -> None:
        self.source = source
        self.kernels: dict[str, tuple[str, str]] = {}
        self.left: dict[str, str] = {}
        self._told = ""

    def note(self, layer: str, scheme: str | None, kernel: str) -> None:
        """The kernel of a layer of the checkpoint."""
        self.kernels[layer] = (scheme or "dense", kernel)

    def line(self) -> str:
        """``quantdispatch: 210 layers wNa16_int on cpu/native, 1 layer dense on sglang; why: ...``"""
        counted = Counter(self.kernels.values())
        parts = [
            f"{n} {'layers' if n > 1 else 'layer'} {scheme} on {kernel}" for (scheme, kernel), n in counted.items()
        ]
        left = [f"; {what}: {why}" for what, why in self.left.items()]
        return (
            f"quantdispatch: {', '.join(parts) or 'no quantized layer'}{''.join(left)}; "
            f"why: quantdispatch explain {self.source or 'MODEL'}"
        )

    def say(self) -> None:
        """Once for what has been noted so far: a model may be loaded again, and a draft model beside it."""
        line = self.line()
        if line != self._told and self.kernels:
            self._told = line
            LOG.info("%s", line)
