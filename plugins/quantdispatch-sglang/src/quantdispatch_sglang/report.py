"""Where SGLang's users read what is reported."""

from __future__ import annotations

import logging

from .guard import GUARD

LOG = logging.getLogger(GUARD.log)
