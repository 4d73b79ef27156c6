"""What a kernel may compute otherwise than its layer's scheme says, only where a user asks for it by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .errors import ConfigError

#: ``int8-activations``: 16-bit inputs may be quantized to int8, one scale a token
ALLOWANCES = ("int8-activations",)


def allowances(asked: str | Iterable[str]) -> frozenset[str]:
    """One name or several as a set. Raises ``ConfigError`` for a name that is not one."""
    names: list[Any] = [asked] if isinstance(asked, str) else list(asked)
    for name in names:
        if name not in ALLOWANCES:
            raise ConfigError(
                "no such thing can be allowed",
                field="allow",
                observed=name,
                required=", ".join(ALLOWANCES),
                code="QD525",
            )
    return frozenset(names)
