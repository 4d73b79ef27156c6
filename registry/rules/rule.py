"""A rule: a named predicate over one layer's facts, and the scheme it resolves to."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..facts import LayerFacts
from ..predicates import Predicate, When, union

_OWN = __name__.partition(".")[0]
_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class Rule:
    """``when`` the facts match, the layer's scheme is ``scheme`` (``"module:attr"``, imported only when used).

    ``overrides``: names of rules that this one beats where both match; nothing else decides between two rules.
    ``equivalents``: engine to the class names of its schemes with the same numeric contract; ``differs``: engine that
    accepts these args and computes something else, to the reason. Where either holds for a part of the rule only, the
    value is a mapping from class name (or reason) to the ``When`` of that part. ``distribution``, ``version`` and
    ``source`` say where the rule comes from; the last is found by itself, the others when plugins are collected.
    """

    name: str
    when: Predicate | Iterable[When]
    scheme: str
    overrides: tuple[str, ...] = ()
    summary: str = ""
    equivalents: Mapping[str, Iterable[str] | Mapping[str, When]] = field(default_factory=dict, compare=False)
    differs: Mapping[str, str | Mapping[str, When]] = field(default_factory=dict, compare=False)
    distribution: str = field(default="", compare=False)
    version: str = field(default="", compare=False)
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"a rule's name is a non-empty string, not {self.name!r}")
        if not isinstance(self.scheme, str) or not _TARGET.fullmatch(self.scheme):
            raise TypeError(f"rule {self.name}: scheme is 'module:attr', not {self.scheme!r}")
        overrides: object = self.overrides
        if isinstance(overrides, str):
            raise TypeError(f"rule {self.name}: overrides is a tuple of rule names, not one string")
        object.__setattr__(self, "overrides", tuple(self.overrides))
        object.__setattr__(self, "when", union(self.when, When))
        if not self.source:
            object.__setattr__(self, "source", _caller())

    @property
    def predicate(self) -> Predicate:
        """``when``, which is a predicate from the constructor on."""
        assert isinstance(self.when, Predicate)
        return self.when

    def equivalents_for(self, facts: LayerFacts) -> dict[str, tuple[str, ...]]:
        """Engine to its scheme classes with the same numeric contract for this layer, where it has one."""
        found = {engine: _holding(names, facts) for engine, names in self.equivalents.items()}
        return {engine: names for engine, names in sorted(found.items()) if names}

    def differs_for(self, facts: LayerFacts) -> dict[str, str]:
        """Engine that accepts this layer and computes something else, to what it does."""
        found = {
            engine: "; ".join((reasons,) if isinstance(reasons, str) else _holding(reasons, facts))
            for engine, reasons in self.differs.items()
        }
        return {engine: text for engine, text in sorted(found.items()) if text}

    def to_json(self) -> dict[str, Any]:
        """Name, scheme, conditions and origin, as ``rules --json`` has them."""
        return {
            "name": self.name,
            "scheme": self.scheme,
            "when": [box.to_json() for box in self.predicate.boxes],
            "overrides": list(self.overrides),
            "summary": self.summary,
            "equivalents": {k: list(v) for k, v in self.equivalents.items()},
            "differs": {k: [v] if isinstance(v, str) else list(v) for k, v in self.differs.items()},
            "distribution": self.distribution,
            "version": self.version,
            "source": self.source,
        }


def _holding(notes: Iterable[str] | Mapping[str, When], facts: LayerFacts) -> tuple[str, ...]:
    if isinstance(notes, Mapping):
        return tuple(text for text, when in notes.items() if when.test(facts.flat).status == "yes")
    return tuple(notes)


def _caller() -> str:
    """``file:line`` of the code that wrote the rule, the file relative to its top package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (frame.f_code.co_filename in (__file__, "<string>")):
        frame = frame.f_back
    path = Path(frame.f_code.co_filename)
    package = str(frame.f_globals.get("__package__") or "").split(".")
    # The repository root is our own top package, whatever its folder is called; a plugin's folder carries its name.
    depth = len(package) if package[0] == _OWN else len([p for p in package if p]) + 1
    return f"{'/'.join(path.parts[-depth:])}:{frame.f_lineno}"
