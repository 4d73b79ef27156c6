"""Many patterns asked about many names.

Three observations keep the cost of a name near that of one look-up, whatever the number and the kind of the patterns:

* all patterns that RE2 serves are answered by one scan of the name;
* the names of a model differ mostly in their layer and expert numbers, to which most patterns are blind. A pattern
  without back-references sees a character only through its literals and classes; digits that no pattern tells apart
  can be exchanged in a name without changing any answer. So names are remembered up to such digits;
* the patterns that do name numbers match few names, and many names that none of them matches are told by one scan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .pattern_scanner import build_scanner
from .pattern_syntax import digit_sets, digit_table, portable
from .patterns import Pattern, PatternBudget

Numbers = tuple[int, ...]

_FEW_DIGITS = 3  # kinds of digits up to which patterns that see them may share a memory with those that do not
_REMEMBERED = 100_000  # names of one memory
_STRETCH = 4096  # names translated at once


class PatternSet:
    """Several patterns answered together; the patterns share ``budget``, and threads may share the set.

    Raises ``ConfigError`` for a pattern that is too long or that Python's ``re`` refuses.
    """

    def __init__(self, patterns: Sequence[Pattern], budget: PatternBudget) -> None:
        for pattern in patterns:
            pattern.check_length()
        seen = [digit_sets(pattern.text) for pattern in patterns]
        parts = [list(range(len(patterns)))]
        table = digit_table(seen)
        if table is None or len(set(table[ord("0") : ord("9") + 1])) > _FEW_DIGITS:
            blind = [i for i in parts[0] if seen[i] == frozenset()]
            parts = [blind, [i for i in parts[0] if seen[i] != frozenset()]]
        self._parts = [
            _Part({i: patterns[i] for i in part}, digit_table(seen[i] for i in part), budget) for part in parts if part
        ]
        self._merged: dict[tuple[Numbers, Numbers], Numbers] = {}

    def scan(self, name: str) -> Numbers:
        """Ascending numbers of the patterns that match ``name``. Raises ``ConfigError`` when time runs out."""
        if len(self._parts) == 1:
            return self._parts[0].scan(name)
        blind, seeing = self._parts
        return self._merge(blind.scan(name), seeing.scan(name))

    def sign(self, name: str) -> str | bytes:
        """Equal for names that every pattern answers alike, also with the same text before them or cut off there."""
        table = self._parts[-1].table if self._parts else None  # no other part tells more digits apart
        return name.encode().translate(table) if table is not None and name.isascii() else name

    def scan_many(self, names: Sequence[str]) -> list[Numbers]:
        """:meth:`scan` of each name."""
        found: list[Numbers] = [()] * len(names)
        for part in self._parts:
            more = part.scan_many(names)
            if any(more):
                found = list(map(self._merge, found, more)) if any(found) else more
        return found

    def _merge(self, one: Numbers, other: Numbers) -> Numbers:
        if not one:
            return other
        if not other:
            return one
        merged = self._merged.get((one, other))
        if merged is None:
            merged = self._merged[one, other] = tuple(sorted(one + other))
        return merged


class _Part:
    """Patterns, by number, that tell the same digits apart: ``table`` maps a digit to the one that stands for it."""

    def __init__(self, patterns: dict[int, Pattern], table: bytes | None, budget: PatternBudget) -> None:
        self._patterns = patterns
        self.table = table
        self._known: dict[bytes, Numbers] = {}
        candidates = [i for i, pattern in patterns.items() if portable(pattern.text)]
        self._scanner, taken = build_scanner([(patterns[i].text, patterns[i].field) for i in candidates], budget)
        self._fast = [candidates[i] for i in taken]
        fast = set(self._fast)
        self._slow = [i for i in patterns if i not in fast]
        for i in self._slow:
            patterns[i].check()

    def scan(self, name: str) -> Numbers:
        if self.table is None:
            hits = self._scanner.scan(name) if self._scanner is not None else None
            return hits if hits == () and not self._slow else self._complete(name, hits)
        try:
            key = name.encode().translate(self.table)
        except UnicodeEncodeError:  # a lone surrogate
            return self._complete(name, None)
        found = self._known.get(key)
        if found is None:
            found = self._ask(name)
            if len(self._known) < _REMEMBERED:
                self._known[key] = found
        return found

    def scan_many(self, names: Sequence[str]) -> list[Numbers]:
        if self.table is None:
            return self._ask_many(names)
        found: list[Numbers] = []
        for start in range(0, len(names), _STRETCH):
            found += self._scan_stretch(names[start : start + _STRETCH], self.table)
        return found

    def _scan_stretch(self, names: Sequence[str], table: bytes) -> list[Numbers]:
        joined = "\n".join(names)
        if not joined.isascii() or joined.count("\n") != len(names) - 1:
            return [self.scan(name) for name in names]
        keys = joined.encode().translate(table).split(b"\n")
        known = self._known
        fresh = {key: name for key, name in zip(keys, names, strict=True) if key not in known}
        if not fresh:
            return [known[key] for key in keys]
        asked = dict(zip(fresh, self._ask_many(list(fresh.values())), strict=True))
        if len(known) + len(asked) <= _REMEMBERED:
            known.update(asked)
            return [known[key] for key in keys]
        return [asked[key] if key in asked else known[key] for key in keys]

    def _ask(self, name: str) -> Numbers:
        hits = self._scanner.scan(name) if self._scanner is not None else None
        return hits if hits == () and not self._slow else self._complete(name, hits)

    def _ask_many(self, names: Sequence[str]) -> list[Numbers]:
        hits: list[Numbers | None]
        if self._scanner is None:
            hits = [()] * len(names)
        elif self._scanner.takes_all(names):
            hits = self._scanner.scan_many(names)
        else:
            taken = list(filter(self._scanner.takes, names))
            of_name = dict(zip(taken, self._scanner.scan_many(taken), strict=True))
            hits = [of_name.get(name) for name in names]
        unanswered = [name for name, found in zip(names, hits, strict=True) if found is None]
        rest = iter(self._ask_each_of_many(unanswered, self._fast))
        found = [hit and tuple(map(self._fast.__getitem__, hit)) if hit is not None else next(rest) for hit in hits]
        if not self._slow:
            return found
        slow = self._ask_each_of_many(names, self._slow)
        return [tuple(sorted(one + other)) if other else one for one, other in zip(found, slow, strict=True)]

    def _complete(self, name: str, hits: Numbers | None) -> Numbers:
        """The answer where the scanner found ``hits``, or has none to give."""
        if hits is None:
            return self._ask_each(name, self._patterns)
        found = tuple(map(self._fast.__getitem__, hits)) if hits else ()
        return tuple(sorted(found + self._ask_each(name, self._slow))) if self._slow else found

    def _ask_each_of_many(self, names: Sequence[str], numbers: Iterable[int]) -> list[Numbers]:
        """:meth:`_ask_each` of each name."""
        hits: dict[int, list[int]] = {}
        for i in numbers:
            for place, matches in enumerate(self._patterns[i].ask_many(names)):
                if matches:
                    hits.setdefault(place, []).append(i)
        return [tuple(hits.get(place, ())) for place in range(len(names))]

    def _ask_each(self, name: str, numbers: Iterable[int]) -> Numbers:
        return tuple(i for i in numbers if self._patterns[i].ask(name))
