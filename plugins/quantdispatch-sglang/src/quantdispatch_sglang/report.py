"""One line in SGLang's log, said after a model is loaded."""

from __future__ import annotations

import logging

from quantdispatch.engines.adapters.report import Report as Common

from .guard import GUARD

LOG = logging.getLogger(GUARD.log)


class Report(Common):
    """``source``: what to explain."""

    def __init__(self, source: str = "") -> None:
        super().__init__(LOG, source)
