"""``"module:attr"`` targets: named when something registers, imported when it is used."""

from __future__ import annotations

import importlib
from typing import Any

from .errors import PluginError


def load_target(target: str) -> Any:
    """Import ``module`` and return ``attr`` of it. Raises ``PluginError`` naming the target when either is missing."""
    module_name, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (Exception, SystemExit) as error:  # a stranger's module may raise anything, and may end the process
        reason = error if isinstance(error, (ImportError, AttributeError)) else f"{type(error).__name__}: {error}"
        raise PluginError(
            f"cannot import {target}: {reason}", field=target, observed=str(reason), required="an importable object",
            code="QD911",
        ) from error  # fmt: skip
