"""The error types of the public contract.

Every error is one line of text and carries the same facts as attributes, so that a caller can act on them and the
command line can print them without a traceback. ``exit_code`` is what the command line returns: 1 when the input was
understood but something in it does not resolve or contradicts itself, 2 when it could not be understood at all.
``code`` says which kind of error it is (``"QD504"``) and stays when the wording changes; :mod:`.error_codes` has the
meaning, the cause and the remedy of each, and says which of the facts an error of this code does not have.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from .error_codes import CATALOGUE
from .error_parts import PARTS


class QuantDispatchError(Exception):
    """Base of all errors.

    Attributes: ``message`` (what is wrong), ``layer`` (module name in the checkpoint), ``field`` (key path or tensor),
    ``observed`` and ``required`` (values), ``remedy`` (what would help; where the place that raises it says none, the
    code's). Each but ``message`` may be ``None``.
    ``code``: the kind of error, of the catalogue; where the place that raises it says none, the class's.
    ``engines``: engine to what it would run in place of raising this, in a sentence; empty where none would.
    """

    exit_code = 1
    code: str = "QD900"
    engines: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self,
        message: str,
        *,
        layer: str | None = None,
        field: str | None = None,
        observed: Any = None,
        required: Any = None,
        remedy: str | None = None,
        code: str | None = None,
    ) -> None:
        self.message = message
        self.layer = layer
        self.field = field
        self.observed = observed
        self.required = required
        self.remedy = remedy
        if code is not None:
            self.code = code
            if remedy is None and code in CATALOGUE:
                self.remedy = CATALOGUE[code].remedy
        super().__init__(message)

    def __str__(self) -> str:
        text = " ".join(self.message.split())
        if self.layer and not _names(text, self.layer):
            text = f"{self.layer}: {text}"
        said = f"{text}; {self.remedy or ''}"
        parts = [f"field {self.field}"] if self.field is not None and self.field not in said else []
        for word, value in (("observed", self.observed), ("required", self.required)):
            if value is not None and not (isinstance(value, str) and _names(said, _line(value))):
                parts.append(f"{word} {_short(value)}")
        line = text + (f" ({', '.join(parts)})" if parts else "")
        return _printable("; ".join(part for part in (line, *self.engines.values(), self.remedy) if part))

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), dict(self.__dict__), self.args))

    @property
    def mark(self) -> str:
        """``" [QD504]"``, to stand behind the line, where the place that raised it gave a code; else nothing."""
        return f" [{self.code}]" if "code" in self.__dict__ else ""

    def to_json(self) -> dict[str, Any]:
        """``{"code", "type", "message", "layer", "field", "observed", "required", "remedy", "nearest"}`` as commands
        print it with ``--json``, parts that are not named as ``null``; ``"engines"`` where some run."""
        return {
            "code": self.code,
            "type": type(self).__name__,
            "message": str(self),
            **{part: _plain(getattr(self, part)) for part in PARTS},
            "nearest": [str(n) for n in getattr(self, "nearest", ())],
            **({"engines": dict(self.engines)} if self.engines else {}),
        }


def _plain(value: Any) -> Any:
    """What JSON has a form for as it is, anything else as the message shows it."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value if value is None or isinstance(value, (str, int, float)) else _line(value)


def _names(text: str, name: str) -> bool:
    """Does ``text`` already say ``name``, as a whole word and not as a part of another name?"""
    return name != "" and name in text and re.search(rf"(?<![\w.]){re.escape(name)}(?![\w])", text) is not None


def _printable(text: str) -> str:
    """Names and values come from files: what a terminal would act upon, and not show, is written out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _line(value: Any) -> str:
    return " ".join((value if isinstance(value, str) else repr(value)).split())


def _short(value: Any) -> str:
    text = _line(value)
    return text if len(text) <= 200 else text[:197] + "..."


def _rebuild(cls: type[QuantDispatchError], state: dict[str, Any], args: tuple[Any, ...]) -> QuantDispatchError:
    error = cls.__new__(cls)
    error.__dict__.update(state)
    error.args = args
    return error


class ConfigError(QuantDispatchError):
    """The configuration is missing, malformed or foreign. ``field`` is the key path, e.g.
    ``config_groups.group_0.weights.num_bits``."""

    exit_code = 2
    code = "QD500"


class CheckpointError(QuantDispatchError):
    """Stored tensors contradict the configuration: missing, left over, wrong shape or dtype, unusable values."""

    code = "QD650"


class UnreadableCheckpointError(CheckpointError):
    """A file of the checkpoint is absent, truncated or not a safetensors file."""

    exit_code = 2
    code = "QD600"


class NoSchemeFound(QuantDispatchError):
    """No rule accepts a layer's quant args. ``nearest`` holds the closest rules with the fields that kept each out."""

    code = "QD700"

    def __init__(self, message: str, *, nearest: Iterable[Any] = (), **facts: Any) -> None:
        super().__init__(message, **facts)
        self.nearest = tuple(nearest)


class NoKernelFound(QuantDispatchError):
    """A scheme matched but no kernel is admissible. ``nearest`` holds each kernel's reason."""

    code = "QD750"

    def __init__(self, message: str, *, nearest: Iterable[Any] = (), **facts: Any) -> None:
        super().__init__(message, **facts)
        self.nearest = tuple(nearest)


class PluginError(QuantDispatchError):
    """A plugin cannot be imported, registers something invalid, or conflicts with another."""

    code = "QD910"


class PlanError(QuantDispatchError):
    """One or more layers of a checkpoint do not resolve. ``errors`` holds every failure."""

    code = "QD950"

    def __init__(self, message: str, *, errors: Iterable[QuantDispatchError] = (), **facts: Any) -> None:
        super().__init__(message, **facts)
        self.errors = tuple(errors)
