"""Expected against observed, field by field."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..registry import errors
from .observing import Observation
from .rows import Row


@dataclass(frozen=True)
class Difference:
    """One field of which a row expected something else. Both are texts, as a reader sees them."""

    field: str
    expected: str
    observed: str


def differences(row: Row, seen: Observation) -> list[Difference]:
    """What ``row`` expected and did not get; empty when it holds."""
    found = [d for field, expected in row.expects.items() for d in _of_field(field, expected, seen)]
    if "error" not in row.expects and seen.error is not None:
        found.append(Difference("error", "none", f"{seen.values['error']}: {seen.error}"))
    return found


def _of_field(field: str, expected: Any, seen: Observation) -> Iterator[Difference]:
    observed = seen.values[field]
    if not _HOLDS.get(field, _equal)(expected, observed, seen):
        text = f"{observed}: {seen.error}" if field == "error" and seen.error is not None else _text(observed)
        yield Difference(field, _text(expected), text)


def _equal(expected: Any, observed: Any, seen: Observation) -> bool:
    return bool(expected == observed)


def _is_error(expected: str, observed: str, seen: Observation) -> bool:
    """The type, or a more general one of the public contract; "any error" would hold for too much."""
    if seen.error is None or not expected:
        return expected == observed
    return any(
        kind.__name__ == expected
        for kind in type(seen.error).__mro__
        if issubclass(kind, errors.QuantDispatchError) and kind is not errors.QuantDispatchError
    )


def _contains(expected: Sequence[str], observed: str, seen: Observation) -> bool:
    return all(text in observed for text in expected)


def _begins(expected: Sequence[str], observed: Sequence[str], seen: Observation) -> bool:
    return list(observed[: len(expected)]) == list(expected)


def _same_items(expected: Sequence[str], observed: Sequence[str], seen: Observation) -> bool:
    return sorted(expected) == sorted(observed)


def _same_engines(expected: Mapping[str, Sequence[str]], observed: Mapping[str, Any], seen: Observation) -> bool:
    return {k: sorted(v) for k, v in expected.items()} == {k: sorted(v) for k, v in observed.items()}


def _reasons(expected: Mapping[str, Sequence[str]], observed: Mapping[str, str], seen: Observation) -> bool:
    return expected.keys() == observed.keys() and all(
        word in observed[engine] for engine, words in expected.items() for word in words
    )


def _among(expected: Sequence[str], observed: Sequence[str], seen: Observation) -> bool:
    return set(expected) <= set(observed) if expected else not observed


_HOLDS: Mapping[str, Callable[[Any, Any, Observation], bool]] = {
    "error": _is_error,
    "message": _contains,
    "near": _begins,
    "deviations": _same_items,
    "conditions": _same_items,
    "equivalents": _same_engines,
    "differs": _reasons,
    "engines": _reasons,
    "problems": _among,
}


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {_text(item)}" for key, item in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return str(value) or "none"
