"""The quantization config of a checkpoint, from raw JSON to validated models.

The format is that of compressed-tensors (``quantization/quant_config.py``, ``QuantizationConfig``). What is read beyond
it, and what is refused that it would ignore, is listed in ``docs/reading-configs.md``.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from .args import QuantArgs
from .config_groups import read_format, read_groups, sparse_error
from .config_json import RepeatedKeys, parse_json_file
from .config_locate import all_quantization_configs, find_quantization_config, no_config_error
from .config_models import ConfigGroup, ConfigProblem, QuantConfig
from .config_reading import (
    PROBLEM_CODES,
    Notes,
    join,
    read_args,
    read_optional_mapping,
    read_optional_string,
    read_strings,
    show,
    wrong,
)
from .errors import ConfigError
from .known_plugins import TRANSLATORS

__all__ = [
    "PROBLEM_CODES",
    "ConfigGroup",
    "ConfigProblem",
    "QuantArgs",
    "QuantConfig",
    "find_quantization_config",
    "parse_config",
    "parse_json_file",
    "read_args",
]

METHOD = "compressed-tensors"
STATUSES = ("initialized", "calibration", "frozen", "compressed", "decompressed")

_KEYS = frozenset(
    {
        "config_groups",
        "quant_method",
        "format",
        "ignore",
        "kv_cache_scheme",
        "quantization_status",
        "global_compression_ratio",
        "sparsity_config",
        "transform_config",
        "moe_sparsity_config",
        "version",
    }
)
# Keys beside the block in config.json that ask for more than the block says.
_SIBLINGS = {"online-rotate": "the writer expects activations to be rotated at run time, which is not done"}
_MAX_NESTING = 60


def parse_config(raw: Mapping[str, Any], *, formats: Container[str] = (), at: str = "") -> QuantConfig:
    """Reads a whole config.json, or a quantization block alone.

    ``formats``: further ones, that plugins give a meaning. ``at``: the key path of a block given alone.

    Raises ``ConfigError``: no quantization config, one of another method, a malformed value (with its key path), or
    weights stored sparse. What can be read in spite of a flaw is, and ``problems`` says so.
    """
    found = all_quantization_configs(raw)
    block, path = next(found, (None, ""))
    if block is None:
        raise no_config_error()
    path = path or at
    _check_nesting(block, path)
    notes = Notes(formats)
    method = _read_method(block, path, notes)
    others = [where for other, where in found if not _same(other, block)]
    for where in others:
        notes.problem("second-config", where, f"another quantization config; {path} counts")
    for key, message in _SIBLINGS.items():
        if path and path != at and key in raw:
            notes.problem("sibling-key", key, message)
    return _read_block(block, path, method, notes)


def _read_block(block: Mapping[str, Any], path: str, method: str, notes: Notes) -> QuantConfig:
    def at(key: str) -> tuple[Any, str]:
        return block.get(key), join(path, key)

    notes.unknown_keys(block, _KEYS, path)
    sparsity = _read_sparsity(*at("sparsity_config"), notes)
    groups = read_groups(*at("config_groups"), notes)
    kv_cache = read_args(*at("kv_cache_scheme"), notes)
    if not groups and kv_cache is None:
        notes.problem("no-groups", join(path, "config_groups"), "nothing is quantized: no config_groups")
    return QuantConfig(
        groups=groups,
        format=read_format(*at("format"), notes) or "fakequant",
        ignore=_read_ignore(*at("ignore")),
        kv_cache_scheme=kv_cache,
        transform_config=_read_transforms(*at("transform_config")),
        sparsity_config=sparsity,
        moe_sparsity_config=_read_moe_sparsity(*at("moe_sparsity_config"), notes),
        quantization_status=_read_status(*at("quantization_status"), notes),
        global_compression_ratio=_read_ratio(*at("global_compression_ratio")),
        version=read_optional_string(*at("version")),
        quant_method=method,
        path=path,
        problems=tuple(notes.problems),
        unknown_keys=notes.unknown,
    )


def _read_method(block: Mapping[str, Any], path: str, notes: Notes) -> str:
    """``"compressed-tensors"``. Looked at before anything else: another method gives the other keys another meaning."""
    method, where = block.get("quant_method"), join(path, "quant_method")
    if method is not None and not isinstance(method, str):
        raise wrong(where, method, f"'{METHOD}'")
    if method is None and "quant_algo" in block:
        method = "modelopt"  # its files share the key config_groups, and older ones leave the method out
    if method is None:
        if not block.get("config_groups") and not block.get("kv_cache_scheme"):
            raise wrong(where, None, f"'{METHOD}'", message="missing, and no config_groups tell the method")
        notes.problem("no-quant-method", where, f"missing; taken for {METHOD} by its config_groups")
        return METHOD
    if method.strip().lower().replace("_", "-") == METHOD:
        return METHOD
    translator = TRANSLATORS.get(method.strip().lower())
    install = f" (pip install {translator})" if translator else ""
    raise ConfigError(
        f"{where}: quantized by {show(method)}, which is another format",
        field=where,
        observed=show(method),
        required=f"'{METHOD}'",
        remedy=f"install a plugin that translates {show(method)} configs{install}, or quantize the model with {METHOD}",
        code="QD504",
    )


def _read_ignore(raw: Any, path: str) -> tuple[str, ...]:
    return () if raw is None else read_strings(raw, path)


def _read_transforms(raw: Any, path: str) -> dict[str, Any]:
    """Empty when there are no transforms, however the file says that."""
    transforms = read_optional_mapping(raw, path)
    groups = read_optional_mapping(transforms.get("config_groups"), join(path, "config_groups"))
    return transforms if groups or set(transforms) - {"config_groups"} else {}


def _read_sparsity(raw: Any, path: str, notes: Notes) -> dict[str, Any] | None:
    """Left-over metadata, or an error: no release that still exists reads sparse weights."""
    sparsity = read_optional_mapping(raw, path)
    if not sparsity:
        return None
    where = join(path, "format")
    name = read_optional_string(sparsity.get("format"), where)
    if name is None:
        raise wrong(where, None, "'dense'", message="missing, so the storage of the weights is unknown")
    if name.strip().lower() != "dense":
        raise sparse_error(where, name)
    notes.problem("dense-sparsity", path, "the weights are stored dense; their measured sparsity has no effect")
    return sparsity


def _read_moe_sparsity(raw: Any, path: str, notes: Notes) -> dict[str, Any] | None:
    sparsity = read_optional_mapping(raw, path)
    if not sparsity:
        return None
    notes.problem("moe-sparsity", path, "layers differ in their number of experts, which the model has to know")
    return sparsity


def _read_status(raw: Any, path: str, notes: Notes) -> str | None:
    status = read_optional_string(raw, path)
    if status is not None and status not in STATUSES:
        notes.problem("unknown-status", path, f"unknown status {show(status)}; stored tensors tell what was done")
    return status


def _read_ratio(raw: Any, path: str) -> float | None:
    if raw is None:
        return None
    try:
        if isinstance(raw, (int, float, str)):
            return float(raw)
    except (ValueError, OverflowError):
        pass
    raise wrong(path, raw, "a number or null")


def _same(left: Any, right: Any) -> bool:
    try:
        return bool(left == right)
    except (RecursionError, TypeError, ValueError):
        return False


def _check_nesting(block: Mapping[str, Any], path: str) -> None:
    """Refuses what is nested beyond reason (or holds itself), and keys given twice: one of two values would be lost."""
    todo: list[tuple[Any, str, int]] = [(block, path, 0)]
    while todo:
        value, where, depth = todo.pop()
        if depth > _MAX_NESTING:
            raise wrong(where, value, f"at most {_MAX_NESTING} levels", message="nested too deeply")
        if isinstance(value, RepeatedKeys):
            key = value.repeated[0]
            raise wrong(join(where, key), value[key], "each key once", message="given more than once")
        if isinstance(value, Mapping):
            todo.extend((item, join(where, key), depth + 1) for key, item in value.items())
        elif isinstance(value, (list, tuple)):
            # Elements stay without an index: a path is built for every one, and lists of names are long.
            todo.extend((item, where, depth + 1) for item in value if isinstance(item, (Mapping, list, tuple)))
