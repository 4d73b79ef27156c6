"""Tables as pytest collects them: a file that holds one test a row."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..registry.errors import QuantDispatchError
from .rows import Row

if TYPE_CHECKING:
    import pytest


def table_file(path: Path, parent: pytest.Collector) -> pytest.Collector:
    """The collector of one table."""
    collector: pytest.Collector = _file_class().from_parent(parent, path=path)
    return collector


def rows_of(item: pytest.Item) -> list[Row]:
    """The rows that a test is about: a collected one, or those among a test function's parameters."""
    own = getattr(item, "dispatch_row", None)
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return [value for value in (own, *parameters.values()) if isinstance(value, Row)]


# The classes are made when the first table is met: this module can be imported where there is no pytest.


@cache
def _file_class() -> Any:
    import pytest

    from .tables import load_table

    class TableFile(pytest.File):
        """A dispatch table."""

        def collect(self) -> Iterator[pytest.Item]:
            try:
                table = load_table(self.path)
                # a plugin that cannot be imported is the table's fault, and not that of each of its rows
                _ = table.registry
            except QuantDispatchError as error:
                raise self.CollectError(str(error)) from None
            for row in table:
                yield _item_class().from_parent(self, name=row.id, row=row)

    return TableFile


@cache
def _item_class() -> Any:
    import pytest

    from .checking import RowMismatch, check_row
    from .mutating import MutationSurvived

    class RowItem(pytest.Item):
        """One row."""

        def __init__(self, *, row: Row, **given: Any) -> None:
            super().__init__(**given)
            self.dispatch_row = row

        def runtest(self) -> None:
            check_row(self.dispatch_row)

        def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
            # the message says all; a traceback would lead into this library
            if isinstance(excinfo.value, (RowMismatch, MutationSurvived, QuantDispatchError)):
                return str(excinfo.value)
            return super().repr_failure(excinfo, style)

        def reportinfo(self) -> tuple[PathLike[str] | str, int | None, str]:
            row = self.dispatch_row
            return self.path, row.line - 1 if row.line else None, f"row {row.id}"

    return RowItem
