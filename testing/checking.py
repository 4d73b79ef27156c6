"""Does a row hold?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..registry.registry import Registry
from .comparing import Difference, differences
from .observing import observe
from .report import failure_text
from .rows import Row


class RowMismatch(AssertionError):
    """A row does not hold. ``differences``: what it expected and did not get; the message says why."""

    def __init__(self, message: str, row: Row, found: tuple[Difference, ...]) -> None:
        super().__init__(message)
        self.row = row
        self.differences = found


def check_row(row: Row | Mapping[str, Any], registry: Registry | None = None) -> None:
    """Raises ``RowMismatch`` unless every expectation of ``row`` holds, for every layer that it speaks of.

    ``row``: of a table, or its keys. ``registry``: what it is tried against, instead of what its table says. Raises
    ``TableError`` for keys that cannot be meant.
    """
    __tracebackhide__ = True
    if not isinstance(row, Row):
        row = Row.read(row)
    registry = registry if registry is not None else row.origin.registry
    for seen in observe(row, registry):
        found = differences(row, seen)
        if found:
            raise RowMismatch(failure_text(row, seen, found, registry), row, tuple(found))
