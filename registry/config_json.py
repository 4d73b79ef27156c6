"""Reading a JSON file that somebody else wrote."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import ConfigError

# The largest real config.json seen is below 1 MiB; a file this long is not one.
MAX_BYTES = 64 * 2**20


class RepeatedKeys(dict[str, Any]):
    """A JSON object that names a key twice. Holds the last value of each, as every JSON reader does.

    Whether that is harmless depends on where it stands: inside a quantization config it is refused.
    """

    repeated: tuple[str, ...] = ()


def parse_json_file(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """The object in a UTF-8 JSON file (a byte order mark is allowed).

    Raises ``ConfigError`` when the file cannot be read, is not a regular file, is empty, too long, not UTF-8, not JSON,
    nested too deeply, or holds something else than an object.
    """
    name = Path(path).name
    text = _read_text(path, name)
    if not text.strip():
        raise _no_json(name, "is empty", "no text")
    try:
        value = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        found = text[error.pos : error.pos + 20] or "the end of the file"
        raise _no_json(name, f"is not JSON: {error.msg} at {where}", found) from None
    except RecursionError:
        raise _no_json(name, "is nested too deeply", "more levels than Python's stack holds") from None
    except ValueError as error:  # an integer with thousands of digits
        raise _no_json(name, f"holds a number that cannot be read: {error}", str(error)) from None
    if not isinstance(value, dict):
        raise _no_json(name, "holds no JSON object", type(value).__name__)
    return value


def _no_json(name: str, what: str, observed: Any, required: str = "a JSON object") -> ConfigError:
    return ConfigError(f"{name} {what}", field=name, observed=observed, required=required, code="QD502")


def _read_text(path: str | os.PathLike[str], name: str) -> str:
    try:
        info = os.stat(path)
        # A pipe or a device would block, or never end.
        if not stat.S_ISREG(info.st_mode):
            raise _no_json(name, "is not a regular file", stat.filemode(info.st_mode), "a file")
        if info.st_size > MAX_BYTES:
            raise _no_json(name, "is too long", f"{info.st_size} bytes", f"at most {MAX_BYTES}")
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _no_json(name, f"cannot be read: {reason}", reason, "a file that may be read") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"{data[error.start]:#04x}"
        raise _no_json(name, f"is not UTF-8: byte {error.start} is {found}", found, "UTF-8") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    seen: set[str] = set()
    repeated = RepeatedKeys(value)
    repeated.repeated = tuple(dict.fromkeys(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]
    return repeated
