"""Checks of names alone: clashes, overrides that name nobody, overrides in a circle. No layer is looked at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..rules.rule import Rule
from .findings import Finding, finding, listed, placed


def distinct(rules: Iterable[Rule]) -> list[Rule]:
    """The rules by name, the same rule given twice counted once; the order of ``rules`` has no influence."""
    seen: list[Rule] = []
    for rule in sorted(rules, key=lambda r: (r.name, r.distribution, r.source)):
        if not any(rule is other or _same(rule, other) for other in seen if other.name == rule.name):
            seen.append(rule)
    return seen


def _same(rule: Rule, other: Rule) -> bool:
    homes = {rule.distribution, other.distribution} - {""}
    return rule == other and rule.source == other.source and len(homes) < 2


def clashes(rules: Sequence[Rule]) -> list[list[Rule]]:
    """Rules that share a name with another, a list for each such name."""
    by_name: dict[str, list[Rule]] = {}
    for rule in rules:
        by_name.setdefault(rule.name, []).append(rule)
    return [group for group in by_name.values() if len(group) > 1]


def find_cycles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The cycles of a relation: a shortest one for each set of names that reach each other, first name repeated.

    The outcome depends on the relation only, not on the order of ``graph``.
    """
    reach = {name: _reachable(graph, name) for name in graph}
    cycles, done = [], set[str]()
    for start in sorted(graph):
        if start in done or start not in reach[start]:
            continue
        done |= {other for other in reach[start] if start in reach.get(other, ())}
        cycles.append(_shortest(graph, start))
    return cycles


def _reachable(graph: Mapping[str, Iterable[str]], start: str) -> set[str]:
    seen: set[str] = set()
    todo = list(graph.get(start, ()))
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += graph.get(name, ())
    return seen


def _shortest(graph: Mapping[str, Iterable[str]], start: str) -> list[str]:
    """A shortest way from ``start`` back to it, which is known to exist."""
    paths = [[start]]
    seen = set[str]()
    while True:
        longer = []
        for path in paths:
            for name in sorted(set(graph.get(path[-1], ()))):
                if name == start:
                    return [*path, start]
                if name not in seen:
                    seen.add(name)
                    longer.append([*path, name])
        paths = longer


def name_findings(rules: Sequence[Rule], own: frozenset[int]) -> list[Finding]:
    """Faults of names in which a rule of ``own`` (by ``id``) takes part."""
    found = []
    for group in clashes(rules):
        if any(id(rule) in own for rule in group):
            message = f"{len(group)} rules are called {group[0].name}: {listed(group)}"
            found.append(finding("name-clash", message, rules=group, remedy="give each a name of its own"))
    names = {rule.name for rule in rules}
    for rule in rules:
        for name in sorted(set(rule.overrides) - names):
            if id(rule) in own:
                message = f"rule {placed(rule)} overrides {name!r}, which no rule is called"
                remedy = _near(name, names)
                found.append(finding("unknown-override", message, rules=[rule], remedy=remedy))
    by_name = {rule.name: rule for rule in rules}
    for cycle in find_cycles({rule.name: rule.overrides for rule in rules}):
        members = [by_name[name] for name in cycle[:-1]]
        if any(id(rule) in own for rule in members):
            message = f"overrides form a circle: {' -> '.join(cycle)}: {listed(members)}"
            found.append(finding("override-cycle", message, rules=members, remedy="take one of the overrides out"))
    return found


def _near(name: str, names: Iterable[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, sorted(names), n=1)
    return f"did you mean {near[0]!r}?" if near else "take it out, or install the distribution that has the rule"
