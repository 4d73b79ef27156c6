"""One line in vLLM's log: how many layers go by which scheme and kernel, and the command that explains them."""

from __future__ import annotations

import logging
from collections import Counter

from quantdispatch.engines.adapters.layers import Members
from quantdispatch.registry.resolution import Resolution

LOG = logging.getLogger("vllm.plugins.quantdispatch")


class Report:
    """Collects while modules are built and loaded. ``source``: what to explain."""

    def __init__(self, source: str = "") -> None:
        self.source = source
        self.kernels: dict[str, tuple[str, str]] = {}
        self._refused: set[str] = set()
        self._awaited: set[int] = set()
        self._said = False

    def note(self, layer: Resolution, kernel: str) -> None:
        """The kernel of a layer of the checkpoint."""
        self.kernels[layer.name] = (layer.scheme or "dense", kernel)

    def refused(self, module: Members, reason: Exception) -> None:
        """vLLM has no kernel for a scheme that it has a class for. Said once for a scheme."""
        scheme = module.first.scheme or ""
        if scheme not in self._refused:
            self._refused.add(scheme)
            LOG.debug("vLLM cannot compute %s here (%s); quantdispatch does", scheme, reason)

    def expect(self, module: object) -> None:
        """A module is being built that will call :meth:`done` when its weights are loaded."""
        self._awaited.add(id(module))

    def done(self, module: object, rank: int = 0) -> None:
        """Say the line after the last of them, on the first rank."""
        self._awaited.discard(id(module))
        if not self._awaited and not self._said and rank == 0:
            self._said = True
            LOG.info("%s", self.line())

    def line(self) -> str:
        """``quantdispatch: 210 layers wNa16_int on cpu/native; why: quantdispatch explain PATH``"""
        counted = Counter(self.kernels.values())
        parts = [f"{n} layer{'s'[: n > 1]} {scheme} on {kernel}" for (scheme, kernel), n in counted.items()]
        return f"quantdispatch: {', '.join(parts) or 'no quantized layer'}; why: quantdispatch explain {self.source}"
