"""A row with one of its expectations changed: each such row must fail."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..registry.errors import QuantDispatchError
from ..registry.facts import KINDS
from ..registry.registry import Registry
from .rows import Row

#: a name and a text that nothing has
NOTHING = "nothing-of-this-name"
_ERRORS = ("NoSchemeFound", "NoKernelFound", "ConfigError", "CheckpointError", "PluginError")


def expectation_changes(row: Row, registry: Registry) -> Iterator[tuple[str, str, Row]]:
    """The expectation's name, what it is changed to, and the row that says so."""
    for key, value in row.expects.items():
        for other in _others(key, value, registry):
            yield key, _shown(other), row.expecting(**{key: other})
    if not row.expects.get("error"):
        yield "error", "NoSchemeFound", row.expecting(error="NoSchemeFound")
    else:
        # an error that nobody speaks of any more
        bare = row.expecting(error=None, message=None, near=None, engines=None)
        yield "error", "(left out)", bare


def _others(key: str, value: Any, registry: Registry) -> Iterator[Any]:
    if key == "error":
        yield from (name for name in _ERRORS if name != value)
    elif key in ("message", "deviations", "conditions", "problems", "near"):
        yield from _changed_list(key, value)
    elif key in ("equivalents", "differs", "engines"):
        yield from _changed_engines(value)
    else:
        names = [name for name in sorted(_names(key, registry)) if name != value]
        # two real ones, the first and the last, say as much as all
        yield from dict.fromkeys([*names[:1], *names[-1:], NOTHING, *([""] if value else [])])


def _changed_list(key: str, value: list[str]) -> Iterator[list[str]]:
    yield [*value, NOTHING]
    if key == "near":
        yield [NOTHING, *value[1:]]
        if len(set(value)) > 1:
            yield value[::-1]
    elif key in ("deviations", "conditions"):
        yield from (value[:i] + value[i + 1 :] for i in range(len(value)))
    else:
        yield from (value[:i] + [f"{value[i]} {NOTHING}"] + value[i + 1 :] for i in range(len(value)))


def _changed_engines(value: dict[str, list[str]]) -> Iterator[dict[str, list[str]]]:
    yield {**value, NOTHING: [NOTHING]}
    for engine, texts in value.items():
        yield {name: other for name, other in value.items() if name != engine}
        yield {**value, engine: [*texts, NOTHING]}


def _names(key: str, registry: Registry) -> Iterable[str]:
    if key == "rule":
        return {rule.name for rule in registry.rules.rules}
    if key == "kernel":
        return {kernel.name for kernel in registry.kernels}
    if key == "backend":
        return {kernel.backend for kernel in registry.kernels}
    if key == "scheme":
        return set(_scheme_names(registry))
    return set(KINDS) if key == "kind" else set()


def _scheme_names(registry: Registry) -> Iterator[str]:
    for rule in registry.rules.rules:
        try:
            yield registry.scheme_class(rule).name
        except QuantDispatchError:  # a scheme that cannot be imported has no name to mistake for another
            continue


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {', '.join(texts)}" for key, texts in value.items()) or "none"
    return ", ".join(value) or "none" if isinstance(value, list) else str(value) or "none"
