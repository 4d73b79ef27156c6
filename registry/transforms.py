"""Transforms (rotations) that a config asks for at run time, which change what a layer computes.

Format: ``TransformConfig`` of compressed-tensors (``transform/transform_config.py``): groups with ``apply``, a list of
``targets``, ``ignore`` and ``location``. Those on weights were applied when the checkpoint was written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import ConfigError
from .modules import Module
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
                self._read(name, _object(raw, f"{where}.apply.{number}"), f"{where}.apply.{number}")
        if config and not groups:
            raise ConfigError("has no config_groups", field=FIELD, observed=sorted(config), required="config_groups")

    def _read(self, name: str, args: Mapping[str, Any], where: str) -> None:
        location = args.get("location")
        if location not in _LOCATIONS:
            raise ConfigError(
                "unknown place for a transform",
                field=f"{where}.location",
                observed=location,
                required=" | ".join(_LOCATIONS),
            )
        targets, ignore = (_array(args.get(key, []), f"{where}.{key}") for key in ("targets", "ignore"))
        if location in OFFLINE:
            self.offline.append(f"{name} at {location}")
        else:
            self._online.append((f"{name} at {location}", TargetIndex([(name, targets)], ignore)))

    def online(self, module: Module) -> tuple[str, ...]:
        """The transforms that the module needs at run time: ``["R3 at q_attn"]``."""
        return tuple(
            label
            for label, index in self._online
            if index.match(module.name, module.classes) and index.ignored_by(module.name, module.classes) is None
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """Every transform at run time, wherever it applies."""
        return tuple(label for label, _ in self._online)

    def __bool__(self) -> bool:
        return bool(self._online)


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError("malformed", field=where, observed=value, required="an object")
    return value


def _array(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError("malformed", field=where, observed=value, required="a list")
    return value
