"""Reading a table: TOML or JSON text to rows. The format is described in ``docs/testing.md``."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..registry.registry import Registry
from .rows import Origin, Row, TableError

_KEYS = ("row", "defaults", "plugins")
_ROW_LINE = re.compile(r"\s*\[\[\s*row\s*\]\]")


@dataclass(frozen=True)
class Table(Sequence[Row]):
    """Rows in the order of the file, each with an id of its own. Never empty."""

    rows: tuple[Row, ...]
    origin: Origin

    def __getitem__(self, key: Any) -> Any:
        """A row by its number, or by its id."""
        if isinstance(key, str):
            return next(row for row in self.rows if row.id == key)
        return self.rows[key]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @property
    def registry(self) -> Registry:
        """The rules and kernels that the table is about."""
        return self.origin.registry


def load_table(
    source: str | os.PathLike[str] | Iterable[Mapping[str, Any]], *, registry: Registry | None = None
) -> Table:
    """A table from a file (``.toml`` or ``.json``), or from rows as mappings.

    ``registry``: what its rows are tried against, instead of what its ``plugins`` say. Raises ``TableError`` for a file
    that cannot be read, and for a table or row that cannot be meant: what and where is in the message.
    """
    if not isinstance(source, (str, os.PathLike)):
        return _table({"row": list(source)}, Origin("rows", Path.cwd(), given=registry), {})
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8")
        raw = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise TableError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:  # both parsers' errors, and bytes that are no UTF-8
        raise TableError(f"{path}: not {path.suffix.lstrip('.') or 'TOML'}: {error}") from None
    origin = Origin(shown(path), path.absolute().parent, given=registry)
    # tables within a row have other headers, so these lines are the rows in order
    found = [n for n, line in enumerate(text.splitlines(), 1) if _ROW_LINE.match(line)]
    return _table(raw, origin, dict(enumerate(found)))


def shown(path: Path) -> str:
    """The path as a reader would write it: relative where that is shorter."""
    try:
        return path.absolute().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return str(path)


def _table(raw: Any, origin: Origin, lines: Mapping[int, int]) -> Table:
    where = origin.path
    if not isinstance(raw, Mapping):
        raise TableError(f"{where}: a table has the keys {', '.join(_KEYS)}")
    for key in raw:
        if key not in _KEYS:
            raise TableError(f"{where}: {key} is no key of a table; it has {', '.join(_KEYS)}", field=str(key))
    plugins, defaults, rows = raw.get("plugins"), raw.get("defaults", {}), raw.get("row", [])
    if plugins is not None:
        if not isinstance(plugins, list) or not all(isinstance(p, str) for p in plugins):
            raise TableError(f"{where}: plugins is a list of names of modules", field="plugins", observed=plugins)
        origin = replace(origin, plugins=tuple(plugins))
    if not isinstance(defaults, Mapping) or "id" in defaults:
        raise TableError(f"{where}: defaults is a table of keys that several rows share", field="defaults")
    if not isinstance(rows, list) or not rows:
        raise TableError(f"{where}: a table without rows tests nothing", field="row")
    read = tuple(
        Row.read({**defaults, **row} if isinstance(row, Mapping) else row, origin, lines.get(number, 0))
        for number, row in enumerate(rows)
    )
    _check_ids(read)
    return Table(read, origin)


def _check_ids(rows: Iterable[Row]) -> None:
    seen: dict[str, Row] = {}
    for row in rows:
        other = seen.setdefault(row.id, row)
        if other is not row:
            raise TableError(f'{row.where}: row "{row.id}" has the id of another row, {other.where}', field="id")
