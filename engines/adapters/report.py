"""One line in an engine's log: how many layers go by which scheme and kernel, and the command that explains them."""

from __future__ import annotations

import logging
from collections import Counter


class Report:
    """Collects while modules are built and loaded. ``log``: a logger that the engine shows. ``source``: the checkpoint,
    as the command takes it."""

    def __init__(self, log: logging.Logger, source: str = "") -> None:
        self.log, self.source = log, source
        #: by layer of the checkpoint: scheme and kernel
        self.kernels: dict[str, tuple[str, str]] = {}
        #: what is otherwise than would be expected, and why
        self.remarks: dict[str, str] = {}
        self._told = ""

    def note(self, layer: str, scheme: str | None, kernel: str) -> None:
        """The kernel of a layer of the checkpoint."""
        self.kernels[layer] = (scheme or "dense", kernel)

    def refused(self, theirs: str, reason: str) -> None:
        """A class of the engine's that computes the same cannot take a layer: said once of each."""
        self.remarks.setdefault(f"not on {theirs}", reason)

    def line(self) -> str:
        """``quantdispatch: 210 layers wNa16_int on cpu/native, 1 layer dense on sglang; why: ...``"""
        counted = Counter(self.kernels.values())
        parts = [
            f"{n} {'layers' if n > 1 else 'layer'} {scheme} on {kernel}" for (scheme, kernel), n in counted.items()
        ]
        remarks = "".join(f"; {what}: {why}" for what, why in self.remarks.items())
        source = self.source or "MODEL"
        return (
            f"quantdispatch: {', '.join(parts) or 'no quantized layer'}{remarks}; why: quantdispatch explain {source}"
        )

    def say(self) -> None:
        """Once for what has been noted so far: a model may be loaded again, and a draft model beside it."""
        line = self.line()
        if line != self._told and self.kernels:
            self._told = line
            self.log.info("%s", line)
