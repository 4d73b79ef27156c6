"""Transforms (rotations) that a config asks for at run time, which change what a layer computes.

Format: ``TransformConfig`` of compressed-tensors (``transform/transform_config.py``): groups with ``apply``, a list of
``targets``, ``ignore`` and ``location``. Those on weights were applied when the checkpoint was written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .errors import ConfigError
from .targets import TargetIndex

OFFLINE = ("weight_input", "weight_output")
_LOCATIONS = (*OFFLINE, "input", "output", "k_cache", "q_attn")
FIELD = "transform_config"


class Transforms:
    """The transforms of a config. Raises ``ConfigError`` for what cannot be read: they must not be lost."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._online: list[tuple[str, TargetIndex]] = []
        self.offline: list[str] = []
        groups = _object(config.get("config_groups", {}), f"{FIELD}.config_groups")
        for name, group in groups.items():
            where = f"{FIELD}.config_groups.{name}"
            for number, raw in enumerate(_array(_object(group, where).get("apply", []), f"{where}.apply")):
                self._read(name, group, _object(raw, f"{where}.apply.{number}"), f"{where}.apply.{number}")
        if config and not groups:
            raise ConfigError("has no config_groups", field=FIELD, observed=sorted(config), required="config_groups")

    def _read(self, name: str, scheme: Mapping[str, Any], args: Mapping[str, Any], where: str) -> None:
        location = args.get("location")
        if location not in _LOCATIONS:
            raise ConfigError(
                "unknown place for a transform",
                field=f"{where}.location",
                observed=location,
                required=" | ".join(_LOCATIONS),
            )
        targets, ignore = (_entries(args.get(key, []), f"{where}.{key}") for key in ("targets", "ignore"))
        if location in OFFLINE:
            self.offline.append(f"{name} at {location}")
        else:
            label = f"{name} at {location} ({', '.join(_how(scheme, args))})"
            self._online.append((label, TargetIndex([(name, targets)], ignore)))

    def online(self, name: str, classes: Sequence[str]) -> tuple[str, ...]:
        """The transforms that the module needs at run time: ``("R3 at q_attn (hadamard, size 128)",)``."""
        return tuple(
            label
            for label, index in self._online
            if index.match(name, classes) and index.ignored_by(name, classes) is None
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """Every transform at run time, wherever it applies."""
        return tuple(label for label, _ in self._online)

    def __bool__(self) -> bool:
        return bool(self._online)


def _how(scheme: Mapping[str, Any], args: Mapping[str, Any]) -> Iterator[str]:
    """In words, which matrix it multiplies by; the values are the file's own."""
    yield str(scheme.get("type", "of no type"))
    if scheme.get("head_dim") is not None:
        yield f"size {scheme['head_dim']}"
    for flag, owner in (("randomize", scheme), ("inverse", args)):
        if owner.get(flag) is True:
            yield {"randomize": "random"}.get(flag, flag)


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError("malformed", field=where, observed=value, required="an object")
    return value


def _entries(value: Any, where: str) -> list[Any]:
    """compressed-tensors takes a single entry for a list of one."""
    return [value] if isinstance(value, str) else _array(value, where)


def _array(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError("malformed", field=where, observed=value, required="a list")
    return value
