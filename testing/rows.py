"""One row of a dispatch table: what it asks, and what it expects. Every key is known, or the row is refused."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..registry.args import QuantArgs
from ..registry.errors import QuantDispatchError
from ..registry.facts import KINDS, SIDES
from ..registry.plan import DTYPES
from ..registry.presets import preset
from ..registry.registry import Registry
from .registries import registry_of

#: how a row may ask: by a layer's facts, by a config, by a folder; and where it runs, which goes with each
LAYER_KEYS = ("preset", *SIDES, "version", "shape")
CONFIG_KEYS = ("config", "tensors")
CHECKPOINT_KEYS = ("checkpoint",)
IN_PLAN_KEYS = ("layer", "modules")
#: ``backend`` is an outcome, so a row that forces one says it in another way
PLACE_KEYS = ("device", "dtype", "tensor_parallel", "force_backend", "environment")

NAMES = ("rule", "scheme", "kernel")
#: expected of a layer in any form of row, and only where a whole plan is made; ``kind`` and ``format`` are given in the
#: first form and expected in the others
OUTCOMES = (
    *NAMES,
    *("backend", "error", "message", "near", "engines", "deviations", "conditions", "equivalents", "differs"),
)
PLAN_OUTCOMES = ("group", "target", "ignored_by", "problems")
EITHER = ("kind", "format")
READERS = ("source", "note")
CLAIMS = ("sensitive", "insensitive")
_TEXTS = frozenset({*NAMES, "backend", "error", "group", "target", "ignored_by", *EITHER, "version", "preset", "layer"})
_LISTS = frozenset({"message", "near", "deviations", "conditions", "problems", *CLAIMS})
_DECISIVE = (*NAMES, "backend", "error")


class TableError(QuantDispatchError):
    """A table or a row that cannot be meant as it is written: an unknown key, an id given twice, nothing expected."""

    exit_code = 2
    code = "QD960"


@dataclass(frozen=True)
class Origin:
    """Where rows come from. ``path``: for people. ``folder``: what paths in rows are relative to. ``plugins``: names of
    modules; ``None`` for what is installed. ``given``: a registry that stands above ``plugins``."""

    path: str = ""
    folder: Path = field(default_factory=Path)
    plugins: tuple[str, ...] | None = None
    given: Registry | None = field(default=None, compare=False, repr=False)

    @property
    def registry(self) -> Registry:
        return self.given if self.given is not None else registry_of(self.plugins)


@dataclass(frozen=True)
class Row:
    """``asks`` and ``expects`` hold what was written, texts for lists made lists. ``sensitive``, ``insensitive``: facts
    that must, and must not, change the outcome. ``line``: in the table, 0 where it is unknown."""

    id: str
    asks: Mapping[str, Any]
    expects: Mapping[str, Any]
    sensitive: tuple[str, ...] = ()
    insensitive: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin)
    line: int = 0

    @classmethod
    def read(cls, raw: Mapping[str, Any], origin: Origin | None = None, line: int = 0) -> Row:
        """A row from its keys. Raises ``TableError`` naming the row and the key."""
        origin = origin or Origin()
        where = f"{origin.path}:{line}" if line else origin.path
        if not isinstance(raw, Mapping):
            raise TableError(f"{where}: a row is a table of keys, not {raw!r}")
        name = raw.get("id")
        if not isinstance(name, str) or not name.strip():
            raise TableError(f"{where}: a row without an id", field="id", observed=name, required="a text")
        return _Reader(name, where, raw).row(origin, line)

    @property
    def form(self) -> str:
        """``"layer"``, ``"config"`` or ``"checkpoint"``."""
        return next((form for form in ("config", "checkpoint") if form in self.asks), "layer")

    @property
    def where(self) -> str:
        """``"tests/data/dispatch.toml:12"``."""
        return f"{self.origin.path}:{self.line}" if self.line else self.origin.path

    @property
    def place(self) -> str:
        """The beginning of a message about this row."""
        return f'{self.where}: row "{self.id}": ' if self.where else f'row "{self.id}": '

    def asking(self, **changes: Any) -> Row:
        """The row with other facts; ``None`` takes a key away."""
        asks = {key: value for key, value in {**self.asks, **changes}.items() if value is not None}
        return replace(self, asks=asks)

    def expecting(self, **changes: Any) -> Row:
        """The row with other expectations; ``None`` takes a key away."""
        expects = {key: value for key, value in {**self.expects, **changes}.items() if value is not None}
        return replace(self, expects=expects)

    def __str__(self) -> str:
        return self.id


class _Reader:
    """Reads one row; every fault names the row and the key."""

    def __init__(self, name: str, where: str, raw: Mapping[str, Any]) -> None:
        self._name, self._where, self._raw = name, where, raw

    def row(self, origin: Origin, line: int) -> Row:
        raw = self._raw
        forms = [key for key in ("config", "checkpoint") if key in raw]
        layer = [key for key in LAYER_KEYS if key in raw]
        if len(forms) > 1 or (forms and layer):
            raise self._fault(forms[-1], f"asks in two ways: {', '.join((*forms, *layer))}")
        asked, expected = _keys(forms[0] if forms else "layer")
        known = {"id", *asked, *expected, *READERS, *CLAIMS}
        for key in raw:
            if key not in known:
                raise self._unknown(str(key), known)
        values = {key: self._value(key, value) for key, value in raw.items()}
        row = Row(
            self._name,
            {key: values[key] for key in asked if key in values},
            {key: values[key] for key in expected if key in values},
            tuple(values.get("sensitive", ())),
            tuple(values.get("insensitive", ())),
            {key: str(values[key]) for key in READERS if key in values},
            origin,
            line,
        )
        if not any(key in row.expects for key in _DECISIVE):
            raise self._fault("id", f"expects nothing: give one of {', '.join(_DECISIVE)}")
        for key in ("message", "near", "engines"):
            if key in row.expects and not row.expects.get("error"):
                raise self._fault(key, "is about an error, and the row expects none")
        return row

    def _value(self, key: str, value: Any) -> Any:
        if key in _LISTS:
            return self._texts(key, value)
        if key in _TEXTS and not isinstance(value, str):
            raise self._fault(key, "is not a text", value)
        check = getattr(self, f"_check_{key}", None)
        if check is not None:
            check(value)
        if key in SIDES:
            self._check_args(key, value)
        if key in ("equivalents", "differs", "engines"):
            return self._engines(key, value)
        return value

    def _texts(self, key: str, value: Any) -> list[str]:
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, (list, tuple)) or not all(isinstance(t, str) and t for t in texts):
            raise self._fault(key, "is a text, or a list of texts that are not empty", value)
        if key in ("message", "near") and not texts:
            raise self._fault(key, "is empty: it would hold for anything", value)
        return list(texts)

    def _engines(self, key: str, value: Any) -> dict[str, list[str]]:
        if not isinstance(value, Mapping):
            raise self._fault(key, "is a table from engine to texts", value)
        return {str(engine): self._texts(key, texts) for engine, texts in value.items()}

    def _check_args(self, key: str, value: Any) -> None:
        if not isinstance(value, Mapping):
            raise self._fault(key, "is a table of quant args", value)
        for name in value:
            if name not in QuantArgs.model_fields:
                raise self._unknown(f"{key}.{name}", {f"{key}.{known}" for known in QuantArgs.model_fields})

    def _check_kind(self, value: str) -> None:
        if value not in KINDS:
            raise self._fault("kind", f"is none of {', '.join(KINDS)}", value)

    def _check_preset(self, value: str) -> None:
        if preset(value) is None:
            raise self._fault("preset", "is no preset of compressed-tensors", value)

    def _check_dtype(self, value: Any) -> None:
        if value not in DTYPES:
            raise self._fault("dtype", f"is none of {', '.join(DTYPES)}", value)

    def _check_shape(self, value: Any) -> None:
        if not isinstance(value, (list, tuple)) or len(value) != 2 or not all(type(v) is int and v > 0 for v in value):
            raise self._fault("shape", "is [N, K], two positive integers", value)

    def _check_config(self, value: Any) -> None:
        if not isinstance(value, (str, Mapping)):
            raise self._fault("config", "is a table, or the path of a JSON file", value)

    def _check_modules(self, value: Any) -> None:
        if not isinstance(value, Mapping):
            raise self._fault("modules", "is a table from names to class names", value)

    def _check_environment(self, value: Any) -> None:
        if not isinstance(value, Mapping):
            raise self._fault("environment", "is a table of facts", value)

    def _check_tensors(self, value: Any) -> None:
        if not isinstance(value, Mapping) or not all(isinstance(v, str) for v in value.values()):
            raise self._fault("tensors", 'is a table from names to texts such as "BF16 128x64"', value)

    def _unknown(self, key: str, known: Iterable[str]) -> TableError:
        near = difflib.get_close_matches(key, sorted(known), n=2)
        hint = f"; did you mean {' or '.join(near)}?" if near else f"; the keys are {', '.join(sorted(known))}"
        return self._fault(key, f"is no key of a {'side' if '.' in key else 'row of this form'}{hint}")

    def _fault(self, key: str, message: str, observed: Any = None) -> TableError:
        place = f"{self._where}: " if self._where else ""
        shown = "" if observed is None else f" (observed {observed!r})"
        return TableError(f'{place}row "{self._name}": {key} {message}{shown}', field=key)


def _keys(form: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The keys that a row of this form asks with, and those that it expects with."""
    if form == "layer":
        return (*EITHER, *LAYER_KEYS, "layer", *PLACE_KEYS), OUTCOMES
    own = CONFIG_KEYS if form == "config" else CHECKPOINT_KEYS
    return (*own, *IN_PLAN_KEYS, *PLACE_KEYS), (*OUTCOMES, *PLAN_OUTCOMES, *EITHER)
