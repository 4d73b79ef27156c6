"""Reading untyped JSON: key paths, and errors that say where, what and what instead."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from typing import Any

from pydantic import ValidationError

from .args import ArgsError, QuantArgs
from .config_models import ConfigProblem
from .errors import ConfigError

PROBLEM_CODES: dict[str, str] = {
    "unknown-key": "a key without a meaning here; its value is kept",
    "unknown-format": "a format that no release of compressed-tensors known here writes",
    "unknown-status": "a quantization_status that no release of compressed-tensors known here writes",
    "no-quant-method": "the block does not name its method; it was taken for compressed-tensors by its config_groups",
    "no-groups": "no config_groups and no kv_cache_scheme: nothing is quantized",
    "no-targets": "a group without targets, which quantizes nothing",
    "duplicate-target": "a target that stands in two groups; the last one counts",
    "dense-sparsity": "sparsity metadata of a checkpoint that is stored dense",
    "moe-sparsity": "experts were removed layer by layer, which changes the model and not its quantization",
    "group-sizes-differ": "weights and inputs of one type are grouped by different sizes",
    "second-config": "the file holds more than one quantization config",
    "sibling-key": "a key beside the quantization config that changes what the layers compute",
}

_REQUIRED = {
    "int": "an integer",
    "bool": "true or false",
    "string": "a string",
    "dict": "an object",
    "float": "a number",
}


class Notes:
    """What reading one config gathers beside its values."""

    def __init__(self, formats: Container[str] = ()) -> None:
        """``formats``: those that plugins give a meaning."""
        self.formats = formats
        self.problems: list[ConfigProblem] = []
        self.unknown: dict[str, Any] = {}

    def problem(self, code: str, path: str, message: str) -> None:
        assert code in PROBLEM_CODES, code
        self.problems.append(ConfigProblem(code=code, path=path, message=message))

    def unknown_keys(self, raw: Mapping[Any, Any], known: frozenset[str], path: str) -> None:
        """Keeps and reports every key outside ``known``."""
        for key in raw:
            if key not in known:
                where = join(path, key)
                self.unknown[where] = raw[key]
                self.problem("unknown-key", where, f"unknown key, kept but of no effect: {show(raw[key])}")


def join(path: str, key: Any) -> str:
    """The key path one level down; whatever the file put there, the result can be printed."""
    text = key if isinstance(key, str) else show(key)
    text = _printable(text)
    return f"{path}.{text}" if path else text


def show(value: Any) -> str:
    """A value as JSON would spell it, short and printable, whatever it is."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (ValueError, TypeError, RecursionError):  # too deep, cyclic, or an integer too long to print
        text = f"<{type(value).__name__}>"
    text = _printable(text)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _printable(text: str) -> str:
    """One line without control characters: what a file holds must not reach a terminal as it is."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _encodable(text: str) -> str:
    """JSON can spell half a surrogate pair, which no name of a layer has and no output can encode."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def wrong(
    path: str, observed: Any, required: str, *, message: str = "wrong value", remedy: str | None = None
) -> ConfigError:
    """The error for a value of the wrong type or content."""
    return ConfigError(
        f"{path or 'configuration'}: {message}",
        field=path or None,
        observed=show(observed),
        required=required,
        remedy=remedy,
        code="QD505",
    )


def read_mapping(value: Any, path: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise wrong(path, value, "an object")
    return value


def read_optional_mapping(value: Any, path: str) -> dict[str, Any]:
    """An object with its keys as strings; empty for null."""
    return {} if value is None else {str(key): item for key, item in read_mapping(value, path).items()}


def read_strings(value: Any, path: str) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise wrong(path, value, "a list of strings")
    for index, item in enumerate(value):
        if not isinstance(item, str):
            raise wrong(join(path, index), item, "a string")
    return tuple(_encodable(item) for item in value)


def read_optional_string(value: Any, path: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise wrong(path, value, "a string or null")
    return None if value is None else _encodable(value)


def check_no_cache(raw: Mapping[Any, Any], path: str, what: str) -> None:
    """Raises ``ConfigError`` for a ``kv_cache_scheme`` in a place where it would be lost."""
    if raw.get("kv_cache_scheme") is not None:
        raise wrong(
            join(path, "kv_cache_scheme"),
            raw["kv_cache_scheme"],
            f"no such key in {what}",
            message=f"kv_cache_scheme does not belong to {what}",
            remedy="move it to the top level of the quantization config, beside config_groups",
        )


def read_args(raw: Any, path: str, notes: Notes) -> QuantArgs | None:
    """Quant args at ``path``, or ``None`` for null. Unknown keys go to ``notes``.

    Raises ``ConfigError`` whose field is the full key path.
    """
    if raw is None:
        return None
    if isinstance(raw, QuantArgs):
        return raw
    fields = QuantArgs.model_fields
    known = {key: value for key, value in read_mapping(raw, path).items() if key in fields}
    check_no_cache(raw, path, "quant args")
    notes.unknown_keys(raw, frozenset(fields), path)
    try:
        return QuantArgs.model_validate(known)
    except ValidationError as error:
        raise _args_error(error, path) from None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise wrong(path, known, "quant args", message=f"cannot be read: {type(error).__name__}") from None


def _args_error(error: ValidationError, path: str) -> ConfigError:
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ArgsError):
        return wrong(join(path, cause.field), cause.observed, cause.required, message=str(cause))
    where = path
    # A union puts its branch into the location too; the field is enough.
    for part in first["loc"][:1]:
        where = join(where, part)
    if isinstance(first["input"], Mapping) and first["loc"] == ("num_bits",):
        return wrong(
            where,
            first["input"],
            "an integer",
            message="another number for each module is a dialect that only some vendor's engine reads",
            remedy="write one config group for each number of bits, with its modules as targets (16 bits: ignore them)",
        )
    kind = first["type"]
    required = first.get("ctx", {}).get("expected") or _REQUIRED.get(kind.split("_")[0], first["msg"])
    return wrong(where, first["input"], str(required))
