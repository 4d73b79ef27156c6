"""A table as the parameters of a test function."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..registry.registry import Registry
from .tables import Table, load_table

if TYPE_CHECKING:
    import pytest


def dispatch_table(
    source: str | os.PathLike[str] | Iterable[Mapping[str, Any]] | Table, *, registry: Registry | None = None
) -> pytest.MarkDecorator:
    """Parametrizes a test function over the rows of a table, as its argument ``row``, with the rows' ids::

        @dispatch_table("data/dispatch.toml")
        def test_dispatch(row):
            check_row(row)

    ``source``: as of :func:`load_table`, or a table; a relative path starts at the folder of the calling file.
    Raises ``TableError`` when the table cannot be read, which pytest reports as an error of that file.
    """
    import pytest

    if isinstance(source, (str, os.PathLike)):
        source = Path(sys._getframe(1).f_code.co_filename).parent / source
    table = source if isinstance(source, Table) else load_table(source, registry=registry)
    return pytest.mark.parametrize("row", list(table), ids=[row.id for row in table])
