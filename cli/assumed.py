"""``--assume``: facts of an environment that a plan is asked about and that is not this one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer

_WORDS = {"none": None, "true": True, "false": False}


def assumed(entries: Iterable[str]) -> dict[str, Any] | None:
    """``NAME=VALUE`` entries as ``plan(environment=...)`` takes them: numbers, true, false, none (not installed), else
    a text such as a version. Raises ``BadParameter`` for what is not of that form."""
    facts: dict[str, Any] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not (name and equals and value):
            raise typer.BadParameter(f"--assume takes NAME=VALUE, not {entry!r}")
        facts[name.strip()] = _WORDS[value.lower()] if value.lower() in _WORDS else _number(value)
    return facts or None


def _number(value: str) -> int | str:
    return int(value) if value.isdecimal() else value
