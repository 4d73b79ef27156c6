"""One line in vLLM's log, said when the last module of a model has its weights."""

from __future__ import annotations

import logging

from quantdispatch.engines.adapters.layers import Members
from quantdispatch.engines.adapters.report import Report as Common

from .guard import GUARD

LOG = logging.getLogger(GUARD.log)


class Report(Common):
    """``source``: what to explain."""

    def __init__(self, source: str = "") -> None:
        super().__init__(LOG, source)
        self._refused: set[str] = set()
        self._awaited: set[int] = set()
        self._said = False

    def unable(self, module: Members, reason: Exception) -> None:
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
