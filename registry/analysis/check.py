"""The static checks of rules: :func:`check_rules`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ..legal import LEGAL, Universe
from ..rules import builtin_rules
from ..rules.rule import Rule
from ..rules.supported import Supported
from .findings import Finding, finding
from .judge import Judge
from .names import distinct, find_cycles, name_findings
from .questions import about_region, about_rule, pairwise
from .schemes import scheme_findings
from .sweep import Fuel, OutOfFuel

#: the distribution of built-in rules, which keep a name that somebody else takes as well
OWN = "quantdispatch"
#: steps for one check, a few seconds of work at most; the built-in rules take a few thousand
FUEL = 500_000
#: the part of the fuel that one hard question may use up
_SHARE = 8


def check_rules(
    rules: Iterable[Rule],
    *,
    against: Iterable[Rule] | None = None,
    supported: Iterable[Supported] = (),
    universe: Universe = LEGAL,
    fuel: int = FUEL,
    schemes: bool = True,
) -> tuple[Finding, ...]:
    """Everything wrong with ``rules``, taken together with those they are to live beside; errors first.

    ``against``: the rules that are there already and are not to blame, by default the built-in ones; ``()`` for none.
    ``supported``: regions in which every layer is to have a rule. ``universe``: the layers that count, by default all
    legal ones. ``fuel``: steps after which a question stays open and is reported as not decided. ``schemes``: import
    the schemes of ``rules`` as well. Raises nothing for whatever rules say. A plugin's test is one line::

        assert not check_rules(quantdispatch_rules())
    """
    own = distinct(rules)
    others = [rule for rule in distinct(_builtin() if against is None else against) if not _given(rule, own)]
    everyone = [*own, *others]
    blamed = frozenset(map(id, own))
    found = name_findings(everyone, blamed)
    table = settled(own, others)
    regions = list(supported)
    judge = Judge(table, universe, [region.predicate for region in regions])
    circle = {name for cycle in find_cycles({r.name: r.overrides for r in table}) for name in cycle}
    questions: dict[str, Callable[[Fuel], list[Finding]]] = {}
    for index, rule in enumerate(table):
        if id(rule) in blamed:
            questions[f"rule {rule.name}"] = partial(about_rule, judge, index, in_circle=rule.name in circle)
    for index, region in enumerate(regions, len(table)):
        questions[f"region {region.name!r}"] = partial(about_region, judge, index, region)
    answers, open_ = _ask(questions, fuel)
    for index, rule in enumerate(table):
        if f"rule {rule.name}" in open_:
            answers += pairwise(judge, index)
    found += _once(answers)
    if schemes:
        found += scheme_findings(own)
    if open_:
        found.append(_not_decided(open_, [rule for rule in table if f"rule {rule.name}" in open_], fuel))
    return tuple(sorted(found, key=lambda f: (f.severity != "error", f.code, f.rules, f.message)))


def _builtin() -> Iterator[Rule]:
    for rule in builtin_rules():
        yield replace(rule, distribution=OWN)


def _given(rule: Rule, own: Sequence[Rule]) -> bool:
    """Is an installed rule one of those that are asked about?"""
    return any(rule == other and rule.source == other.source for other in own if other.name == rule.name)


def settled(own: Sequence[Rule], others: Sequence[Rule]) -> list[Rule]:
    """The rules whose names say which they are: of a name that clashes, the rule that was there first, if any."""
    table = []
    for rule in (*own, *others):
        namesakes = [other for other in (*own, *others) if other.name == rule.name]
        before = [r for r in namesakes if r.distribution == OWN or not any(r is mine for mine in own)]
        if len(namesakes) == 1 or (len(before) == 1 and before[0] is rule):
            table.append(rule)
    return table


def _ask(questions: Mapping[str, Callable[[Fuel], list[Finding]]], fuel: int) -> tuple[list[Finding], list[str]]:
    """The findings of all questions, and those that were not decided.

    Each gets a small share first, so that hard ones leave enough for the others; then a large one; then all there is.
    """
    answers: dict[str, list[Finding]] = {}
    left = fuel
    for share in (fuel // (2 * len(questions) or 1), fuel // _SHARE, fuel):
        for name, question in questions.items():
            if name in answers:
                continue
            portion = Fuel(min(share, left))
            left -= portion.left
            try:
                answers[name] = question(portion)
            except OutOfFuel:
                pass
            left += max(portion.left, 0)
    return [f for name in questions for f in answers.get(name, ())], [n for n in questions if n not in answers]


def _once(found: Iterable[Finding]) -> Iterator[Finding]:
    """An overlap is found from both of its rules."""
    seen: set[tuple[str, ...]] = set()
    for one in found:
        if one.name != "overlap" or one.rules not in seen:
            yield one
        if one.name == "overlap":
            seen.add(one.rules)


def _not_decided(questions: Sequence[str], rules: Sequence[Rule], fuel: int) -> Finding:
    shown = ", ".join(questions[:5]) + (f" and {len(questions) - 5} more" if len(questions) > 5 else "")
    return finding(
        "not-decided",
        f"{shown}: not decided within {fuel} steps",
        rules=rules,
        remedy="give more fuel, or write the rules with fewer alternatives that partly cover each other",
        count=len(questions),
    )
