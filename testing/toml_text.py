"""Rows as TOML text. The standard library reads TOML and does not write it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(
    rows: Iterable[Mapping[str, Any]],
    *,
    defaults: Mapping[str, Any] | None = None,
    plugins: Iterable[str] | None = None,
) -> str:
    """A whole table that :func:`load_table` reads back as these rows. Raises ``TypeError`` for a value TOML has not."""
    blocks = []
    if plugins is not None:
        blocks.append(f"plugins = {_value(list(plugins))}\n")
    if defaults:
        blocks.append(f"[defaults]\n{_keys(defaults)}")
    blocks += [f"[[row]]\n{_keys(row)}" for row in rows]
    return "\n".join(blocks)


def _keys(table: Mapping[str, Any]) -> str:
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in table.items())


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(str(key))} = {_value(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    raise TypeError(f"TOML has no {type(value).__name__}: {value!r}")


def _text(text: str) -> str:
    """A basic string: JSON's escapes are TOML's, but for the delete character, which TOML wants escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
