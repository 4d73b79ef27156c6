"""Values of a foreign block, with an error that says which key is wrong and what was expected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantdispatch import ConfigError

Block = Mapping[str, Any]


def first(block: Block, *keys: str, default: Any = None) -> tuple[str, Any]:
    """The first of ``keys`` that has a value, and the value; the first key and ``default`` where none has."""
    return next(((key, block[key]) for key in keys if block.get(key) is not None), (keys[0], default))


def wrong(key: str, value: Any, required: str, remedy: str | None = None) -> ConfigError:
    return ConfigError(
        f"{key}: wrong value", field=key, observed=repr(value)[:120], required=required, remedy=remedy, code="QD505"
    )


def integer(block: Block, *keys: str, default: int | None = None) -> int:
    key, value = first(block, *keys, default=default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong(key, value, "an integer")
    return value


def flag(block: Block, key: str, default: bool) -> bool:
    value = block.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise wrong(key, value, "true or false")
    return value


def word(block: Block, *keys: str, default: str) -> tuple[str, str]:
    """The key that has it, and a name in lower case."""
    key, value = first(block, *keys, default=default)
    if not isinstance(value, str):
        raise wrong(key, value, "a string")
    return key, value.strip().lower()


def names(block: Block, key: str) -> list[str]:
    value = block.get(key)
    if value is None:
        return []
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise wrong(key, value, "a list of names")
    return list(value)


def group_size(block: Block, *keys: str) -> int:
    size = integer(block, *keys, default=128)
    if size != -1 and size < 1:
        raise wrong(keys[0], size, "a positive integer, or -1 for one group a row")
    return size
