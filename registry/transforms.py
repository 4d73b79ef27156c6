"""Transforms (rotations) that a config asks for at run time, which change what a layer computes.

Format: ``TransformConfig`` of compressed-tensors (``transform/transform_config.py``): groups with ``apply``, a list of
``targets``, ``ignore`` and ``location``. Those on weights were applied when the checkpoint was written. Several at one
place: on inputs the last of the config comes first, on outputs the first, as compressed-tensors' hooks run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .config_dtypes import dtype_name
from .errors import ConfigError
from .pattern_budget import PatternBudget
from .scope import Scope
from .targets import TargetIndex

OFFLINE = ("weight_input", "weight_output")
_LOCATIONS = (*OFFLINE, "input", "output", "k_cache", "q_attn")
FIELD = "transform_config"
_PRECISIONS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Transform:
    """One transform around a module at run time.

    ``type``: of the matrix, as the config says it. ``head_dim``: size of the blocks that it multiplies, or ``None`` for
    all features at once. ``precision``: dtype of the multiplication where no stored matrix has one. ``inverses``: for
    each time it is applied, is it the inverse?
    """

    group: str
    location: str
    type: str
    head_dim: int | None = None
    randomize: bool = False
    precision: str = "float32"
    inverses: tuple[bool, ...] = (False,)

    @property
    def module(self) -> str:
        """Name of the module that holds its tensors, below the one that it is applied to."""
        return f"{self.group}_{self.location}"

    @property
    def is_hadamard(self) -> bool:
        """Is the matrix one of 1 and -1, to be divided by the square root of its size?"""
        return self.type in ("hadamard", "random-hadamard")

    @property
    def permuted(self) -> bool:
        """Are rows and columns of the matrix in an order of their own?"""
        return self.randomize and self.is_hadamard

    @property
    def label(self) -> str:
        words = [self.type]
        words += [f"size {self.head_dim}"] if self.head_dim is not None else []
        words += ["random"] if self.randomize else []
        words += ["inverse"] if self.inverses == (True,) else []
        return f"{self.group} at {self.location} ({', '.join(words)})"


class Transforms:
    """The transforms of a config. Raises ``ConfigError`` for what cannot be read: they must not be lost.

    ``budget``: bounds the time of all regular expressions of a plan together.
    """

    def __init__(self, config: Mapping[str, Any], budget: PatternBudget | None = None) -> None:
        self._budget = budget or PatternBudget()
        self._online: list[tuple[str, str]] = []  # label, and key of the lists that say where
        self._indexes: dict[str, TargetIndex] = {}
        self._by_label: dict[str, Transform] = {}
        self.offline: list[str] = []
        #: the part of the model that the config speaks about; the whole of it where there is none
        self.scope: Scope | None = None
        groups = _object(config.get("config_groups", {}), f"{FIELD}.config_groups")
        for name, group in groups.items():
            where = f"{FIELD}.config_groups.{name}"
            for number, raw in enumerate(_array(_object(group, where).get("apply", []), f"{where}.apply")):
                self._read(name, group, _object(raw, f"{where}.apply.{number}"), where, number)
        if config and not groups:
            raise ConfigError(
                "has no config_groups", field=FIELD, observed=sorted(config), required="config_groups", code="QD513"
            )

    def _read(self, name: str, scheme: Mapping[str, Any], args: Mapping[str, Any], where: str, number: int) -> None:
        here = f"{where}.apply.{number}"
        location = args.get("location")
        if location not in _LOCATIONS:
            raise ConfigError(
                "unknown place for a transform",
                field=f"{here}.location",
                observed=location,
                required=" | ".join(_LOCATIONS),
                code="QD513",
            )
        targets, ignore = (_entries(args.get(key, []), f"{here}.{key}") for key in ("targets", "ignore"))
        if location in OFFLINE:
            self.offline.append(f"{name} at {location}")
            return
        if "." in name or not name:
            raise ConfigError(
                "a group of transforms names modules",
                field=where,
                observed=name,
                required="a name without dots",
                code="QD513",
            )
        transform = Transform(
            group=name,
            location=location,
            type=_text(scheme.get("type"), f"{where}.type"),
            head_dim=_size(scheme.get("head_dim"), f"{where}.head_dim"),
            randomize=_flag(scheme.get("randomize"), f"{where}.randomize"),
            precision=_precision(scheme.get("precision", "float32"), f"{where}.precision"),
            inverses=(_flag(args.get("inverse"), f"{here}.inverse"),),
        )
        self._by_label[transform.label] = transform
        # groups often have the same lists, which need to be asked once
        key = repr([targets, ignore])
        if key not in self._indexes:
            self._indexes[key] = TargetIndex([(name, targets)], ignore, budget=self._budget)
        self._online.append((transform.label, key))

    def online(self, name: str, classes: Sequence[str]) -> tuple[str, ...]:
        """The transforms that the module needs at run time: ``("R3 at q_attn (hadamard, size 128)",)``."""
        return self.online_many([name], [classes])[0]

    def online_many(self, names: Sequence[str], classes: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
        """:meth:`online` of each name with its classes, in order; much faster than name by name."""
        if not self._online:
            return [()] * len(names)
        inside = list(map(self.scope.inside, names)) if self.scope is not None else names
        applies = {key: self._applies(index, names, classes, inside) for key, index in self._indexes.items()}
        rows = zip(*(applies[key] for _, key in self._online), strict=True)
        known: dict[tuple[bool, ...], tuple[str, ...]] = {}
        found = []
        for within, row in zip(inside, rows, strict=True):
            labels = known.get(row)
            if labels is None:
                labels = known[row] = tuple(label for label, yes in zip(self.labels, row, strict=True) if yes)
            found.append(labels if within is not None else ())
        return found

    def _applies(
        self, index: TargetIndex, names: Sequence[str], classes: Sequence[Sequence[str]], inside: Sequence[str | None]
    ) -> list[bool]:
        """For each name, do the lists of ``index`` mean it, by itself or by its name inside of the scope?"""
        answers = index.match_many(names, classes)
        hit = [answer.match is not None for answer in answers]
        ignored = [answer.ignored_by is not None for answer in answers]
        others = {i: within for i, within in enumerate(inside) if within is not None and within != names[i]}
        again = index.match_many(list(others.values()), [classes[i] for i in others])
        for i, answer in zip(others, again, strict=True):
            hit[i] |= answer.match is not None
            ignored[i] |= answer.ignored_by is not None
        return [h and not i for h, i in zip(hit, ignored, strict=True)]

    def running(self, labels: Iterable[str]) -> list[Transform]:
        """What :meth:`online` answered, in the order in which it runs: inputs, outputs, then other places. A group that
        is applied more than once at one place is one transform with several ``inverses``."""
        found = [self._by_label[label] for label in labels]
        inputs = [t for t in reversed(found) if t.location == "input"]
        outputs = [t for t in found if t.location == "output"]
        merged: dict[str, Transform] = {}
        for transform in (*inputs, *outputs, *(t for t in found if t.location not in ("input", "output"))):
            same = merged.get(transform.module)
            if same is not None:
                transform = replace(same, inverses=(*same.inverses, *transform.inverses))
            merged[transform.module] = transform
        return list(merged.values())

    @property
    def labels(self) -> tuple[str, ...]:
        """Every transform at run time, wherever it applies."""
        return tuple(label for label, _ in self._online)

    @property
    def modules(self) -> frozenset[str]:
        """Last names of the modules that hold tensors of transforms at run time."""
        return frozenset(transform.module for transform in self._by_label.values())

    def __bool__(self) -> bool:
        return bool(self._online)


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError("malformed", field=where, observed=value, required="an object", code="QD513")
    return value


def _entries(value: Any, where: str) -> list[Any]:
    """compressed-tensors takes a single entry for a list of one."""
    return [value] if isinstance(value, str) else _array(value, where)


def _array(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError("malformed", field=where, observed=value, required="a list", code="QD513")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ConfigError("malformed", field=where, observed=value, required="a string", code="QD513")
    return value


def _size(value: Any, where: str) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise ConfigError("malformed", field=where, observed=value, required="a positive integer or null", code="QD513")
    return value


def _flag(value: Any, where: str) -> bool:
    if value is not None and not isinstance(value, bool):
        raise ConfigError("malformed", field=where, observed=value, required="true or false", code="QD513")
    return bool(value)


def _precision(value: Any, where: str) -> str:
    name = dtype_name(value)
    if name not in _PRECISIONS:
        raise ConfigError(
            "no dtype to multiply in", field=where, observed=value, required=" | ".join(_PRECISIONS), code="QD513"
        )
    return name
