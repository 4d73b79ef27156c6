"""What the built-in rules are meant to cover, as data: ``rules --check`` looks for legal layers in it without a rule.

A region says which layers somebody may expect to resolve: each preset and each combination that compressed-tensors 0.20
writes. It is declared on its own, not derived from the rules, so that a hole in them shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..predicates import Predicate, When, union


@dataclass(frozen=True)
class Supported:
    """A region of layers, by a name that a reader understands."""

    name: str
    when: Predicate | Iterable[When]

    @property
    def predicate(self) -> Predicate:
        return union(self.when, When)


SUPPORTED: tuple[Supported, ...] = ()
