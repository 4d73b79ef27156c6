"""The mutation check: a row that cannot fail tests nothing, so every row is changed in one place and must fail.

Expectations: each one changed must fail. Facts: some change of one fact (where none does, of two) must fail the row;
of the facts that a row calls ``sensitive`` some other legal value must, of those it calls ``insensitive`` none may.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ..registry.errors import ConfigError
from ..registry.registry import Registry
from .checking import check_row
from .comparing import differences
from .expectation_changes import expectation_changes
from .fact_changes import fact_changes
from .observing import Observation, observe
from .rows import Row, TableError

#: values of a fact that are tried together with those of another before a row is called dead
_FEW = 2


@dataclass(frozen=True)
class Mutation:
    """``row`` differs from the one it was made of in one place: ``what``, which became ``value``. ``of``:
    ``"expectation"`` or ``"fact"``."""

    of: str
    what: str
    value: str
    row: Row

    def __str__(self) -> str:
        return f"{self.of} {self.what} changed to {self.value}"


class MutationSurvived(AssertionError):
    """Rows that hold although they were changed. ``survivors``: id of the row, and what it does not notice."""

    def __init__(self, survivors: Sequence[tuple[Row, str]]) -> None:
        self.survivors = tuple((row.id, text) for row, text in survivors)
        super().__init__("\n".join(f"{row.place}{text}" for row, text in survivors))


def mutations(row: Row, registry: Registry | None = None) -> Iterator[Mutation]:
    """Every variant of ``row`` with one expectation changed, then those with one fact changed to another legal value.

    The former must all fail. Of the latter, the ones of a fact on which the row's decision depends must.
    """
    registry = registry if registry is not None else row.origin.registry
    for what, value, changed in expectation_changes(row, registry):
        yield Mutation("expectation", what, value, changed)
    yield from _fact_mutations(row, observe(row, registry))


def check_mutations(rows: Row | Iterable[Row], *, registry: Registry | None = None, strict: bool = False) -> None:
    """Raises ``MutationSurvived`` naming every row that can be changed without failing, and in what.

    ``strict``: every fact must matter to a row, but for those that it calls ``insensitive``; and a row that expects an
    error must say which facts it hangs on, as ``sensitive``. Raises ``RowMismatch`` for a row that does not hold to
    begin with, ``TableError`` for a claim about a fact that the row does not have.
    """
    survivors: list[tuple[Row, str]] = []
    for row in [rows] if isinstance(rows, Row) else rows:
        own = registry if registry is not None else row.origin.registry
        check_row(row, own)
        survivors += [(row, text) for text in _survivors(row, own, strict)]
    if survivors:
        raise MutationSurvived(survivors)


def _survivors(row: Row, registry: Registry, strict: bool) -> Iterator[str]:
    seen = observe(row, registry)
    for what, value, changed in expectation_changes(row, registry):
        if _holds(changed, seen):
            yield f"holds as well with {what} = {value}"
    facts = _Sensitivity(row, registry, seen)
    if strict or row.sensitive or row.insensitive:
        facts.try_all()
        yield from _broken_claims(row, facts)
        yield from _unclaimed(row, facts) if strict else ()
    if not facts.alive():
        yield "holds whatever one or two facts are changed to: it cannot fail"


def _holds(row: Row, seen: Iterable[Observation]) -> bool:
    return not any(differences(row, observation) for observation in seen)


def _fact_mutations(row: Row, seen: Sequence[Observation]) -> Iterator[Mutation]:
    groups = frozenset(o.layer.group for o in seen if o.layer is not None and o.layer.group is not None)
    for what, value, changed in fact_changes(row, groups):
        yield Mutation("fact", what, value, changed)


@dataclass
class _Sensitivity:
    """What changes of a row's facts do to it, as far as they were tried."""

    row: Row
    registry: Registry
    seen: Sequence[Observation]
    #: fact to the value that failed the row, "" where none did
    tried: dict[str, str] = field(default_factory=dict)

    def try_all(self) -> None:
        for mutation in _fact_mutations(self.row, self.seen):
            if not self.tried.get(mutation.what):
                fails = self._fails(mutation.row)
                if fails is not None:
                    self.tried[mutation.what] = mutation.value if fails else ""

    def alive(self) -> bool:
        """Does some change of one fact, or of two, fail the row? A row without facts to change is taken for alive."""
        if any(self.tried.values()):
            return True
        first = list(_fact_mutations(self.row, self.seen))
        if not first or any(self._fails(mutation.row) for mutation in first):
            return True
        return any(self._fails(mutation.row) for mutation in self._pairs(first))

    def _pairs(self, first: Sequence[Mutation]) -> Iterator[Mutation]:
        """Two facts changed. Where no rule accepts the layer, only those that keep a rule out can change that."""
        traces = [o.layer.trace.rules for o in self.seen if o.layer is not None and o.layer.rule is None]
        hanging = [frozenset(m.field for m in candidate.mismatches) for trace in traces for candidate in trace]
        if traces and self.row.form == "layer":
            for one in first:
                for two in _fact_mutations(one.row, self.seen):
                    if two.what > one.what and any({one.what, two.what} == fields for fields in hanging):
                        yield two
        else:
            for one in _few(first):
                # in either order it is the same row
                yield from (two for two in _few(_fact_mutations(one.row, self.seen)) if two.what > one.what)

    def _fails(self, changed: Row) -> bool | None:
        """``None`` where the change makes a config that cannot be: it says nothing about the decision."""
        try:
            after = observe(changed, self.registry)
        except TableError:  # the row asks about a layer that the changed config does not quantize
            return True
        illegal = any(isinstance(observation.error, ConfigError) for observation in after)
        if illegal and not any(isinstance(observation.error, ConfigError) for observation in self.seen):
            return None
        return any(differences(changed, observation) for observation in after)


def _few(changes: Iterable[Mutation]) -> Iterator[Mutation]:
    """The first values of each fact, which are the usual ones; of kinds and formats there is no usual one."""
    counts: dict[str, int] = {}
    for mutation in changes:
        counts[mutation.what] = counts.get(mutation.what, 0) + 1
        if counts[mutation.what] <= _FEW or mutation.what in ("kind", "format"):
            yield mutation


def _broken_claims(row: Row, facts: _Sensitivity) -> Iterator[str]:
    for claim in row.sensitive:
        for fact in _claimed(row, "sensitive", claim, facts):
            if not facts.tried[fact]:
                yield f"calls {fact} sensitive, and holds whatever it is"
    for claim in row.insensitive:
        for fact in _claimed(row, "insensitive", claim, facts):
            if facts.tried[fact]:
                yield f"calls {fact} insensitive, and fails with {fact} = {facts.tried[fact]}"


def _claimed(row: Row, key: str, claim: str, facts: _Sensitivity) -> list[str]:
    found = [fact for fact in facts.tried if fnmatch.fnmatchcase(fact, claim)]
    if not found:
        known = ", ".join(facts.tried)
        raise TableError(f"{row.place}{key} names {claim}, which has no other legal value here; these do: {known}")
    return found


def _unclaimed(row: Row, facts: _Sensitivity) -> Iterator[str]:
    """What a strict check asks for. An error hangs on a few facts, anything else on all but a few."""
    if row.expects.get("error"):
        if not row.sensitive:
            deciding = json.dumps([fact for fact, failing in facts.tried.items() if failing])
            yield f"does not say what its error hangs on: sensitive = {deciding} or a part of it"
        return
    unnoticed = [fact for fact, failing in facts.tried.items() if not failing]
    news = [fact for fact in unnoticed if not any(fnmatch.fnmatchcase(fact, claim) for claim in row.insensitive)]
    if news:
        yield f"does not notice {', '.join(news)}; if they do not matter, say insensitive = {json.dumps(unnoticed)}"
