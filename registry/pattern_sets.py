"""Many patterns asked about many names.

Two observations keep the cost of a name near that of one look-up, whatever the number and the kind of the patterns:

* all patterns that RE2 serves are answered by one scan of the name;
* the names of a model differ mostly in their layer and expert numbers, to which most patterns are blind. A pattern
  without back-references sees a character only through its literals and classes; digits that no pattern tells apart
  can be exchanged in a name without changing any answer. So names are remembered up to such digits.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence

from .patterns import FREE_S, Pattern, PatternBudget, load_re2, plain, re2_options

_SET_MEMORY = 32 << 20  # bytes
_TIMED_PROGRAM = 20_000  # RE2 instructions above which even a linear scan is worth timing
_SET_PROGRAM = 200_000  # ... and above which compiling the set takes too long
_FREE_S_EACH = 10e-6  # more that a name may take, uncharged, for each pattern that RE2 does not serve ...
_FREE_PATTERNS = 64  # ... up to this number of them

# ------------------------------------------------------------------------------------------------------------- digits

_TOKEN = re.compile(
    r"\\(?P<escape>.)|\[\^?(?P<set>\]?(?:\\.|[^\]\\])*+)\]|(?P<repeat>\{[0-9]*,?[0-9]*\})|(?P<refer>\(\?P=)|(?P<digit>[0-9])",
    re.DOTALL,
)
_MEMBER = re.compile(r"(?P<low>\\.|[^\\])-(?P<high>\\.|[^\\])|(?P<one>\\.|.)", re.DOTALL)
_FLAGS = re.compile(r"\(\?[a-zA-Z]*x")
_SAFE_ESCAPES = frozenset("dDwWsSbBAZ")
_DIGITS = "0123456789"


def digit_table(texts: Iterable[str]) -> bytes | None:
    """A ``bytes.translate`` table that maps each digit to the least one that no pattern of ``texts`` tells it from.

    ``None`` when that would be every digit to itself. It may tell more digits apart than the patterns do, never fewer.
    """
    seen: set[frozenset[str]] = set()
    for text in texts:
        sets = _digit_sets(text)
        if sets is None:
            return None
        seen |= sets
    by_signature: dict[tuple[bool, ...], str] = {}
    order = list(seen)
    image = [by_signature.setdefault(tuple(digit in group for group in order), digit) for digit in _DIGITS]
    return None if image == list(_DIGITS) else bytes.maketrans(_DIGITS.encode(), "".join(image).encode())


def _digit_sets(text: str) -> set[frozenset[str]] | None:
    """The sets of digits that the literals and classes of ``text`` single out; ``None`` when it may look at digits in
    another way (back-references, numeric escapes, comments)."""
    if "(?#" in text or _FLAGS.search(text):  # in comments, brackets do not pair
        return None
    sets: set[frozenset[str]] = set()
    for token in _TOKEN.finditer(text):
        kind, piece = token.lastgroup, token[token.lastgroup or 0]
        if kind == "refer" or (kind == "escape" and not _harmless(piece)):
            return None
        if kind == "digit":
            sets.add(frozenset(piece))
        elif kind == "set":
            for member in _MEMBER.finditer(piece):
                ends = [end for end in member.groups() if end is not None]
                if any(end[0] == "\\" and not _harmless(end[1]) for end in ends):
                    return None
                if ends[0][-1] in _SAFE_ESCAPES and len(ends[0]) > 1:  # \d and its like take all digits or none
                    continue
                sets.add(frozenset(d for d in _DIGITS if ends[0][-1] <= d <= ends[-1][-1]))
    return sets


def _harmless(escaped: str) -> bool:
    return escaped in _SAFE_ESCAPES or not escaped.isalnum()


# --------------------------------------------------------------------------------------------------------------- scan


class PatternSet:
    """Several patterns answered together; the patterns share ``budget``."""

    def __init__(self, patterns: Sequence[Pattern], budget: PatternBudget) -> None:
        self.patterns = tuple(patterns)
        self._budget = budget
        fast = [i for i, pattern in enumerate(self.patterns) if pattern.engine == "re2"]
        self._scan_fast = self._build(fast)
        self._fast = fast if self._scan_fast is not None else []
        self._slow = sorted(set(range(len(self.patterns))) - set(self._fast))
        size = sum(self.patterns[i].program_size for i in fast)
        self._timed = bool(self._slow) or size > _TIMED_PROGRAM
        self._free_s = FREE_S + _FREE_S_EACH * min(len(self._slow), _FREE_PATTERNS)
        self._digits = digit_table(pattern.text for pattern in self.patterns)
        self._known: dict[bytes, tuple[int, ...]] = {}

    def scan(self, name: str) -> tuple[int, ...]:
        """Ascending indices of the patterns that match ``name``. Raises ``ConfigError`` when time runs out."""
        if self._digits is None:
            return self._ask(name)
        try:
            key = name.encode().translate(self._digits)
        except UnicodeEncodeError:  # a lone surrogate
            return self._ask(name)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._ask(name)
        return found

    def _ask(self, name: str) -> tuple[int, ...]:
        if not plain(name):
            return self._charged(name, lambda: self._ask_each(name, range(len(self.patterns)), limited=True))
        if self._timed:
            return self._charged(name, lambda: self._ask_plain(name))
        return self._ask_plain(name)

    def _ask_plain(self, name: str) -> tuple[int, ...]:
        found: list[int] = []
        if self._scan_fast is not None and (hits := self._scan_fast(name.encode())):
            found = [self._fast[i] for i in hits]
        if self._slow:
            found.extend(self._ask_each(name, self._slow, limited=False))
        return tuple(sorted(found))

    def _ask_each(self, name: str, indices: Iterable[int], *, limited: bool) -> tuple[int, ...]:
        return tuple(i for i in indices if self.patterns[i].ask(name, limited=limited))

    def _charged(self, name: str, ask: Callable[[], tuple[int, ...]]) -> tuple[int, ...]:
        start = time.thread_time()
        found = ask()
        blamed = self.patterns[self._slow[0] if self._slow else self._fast[-1]]
        self._budget.charge(time.thread_time() - start - self._free_s, blamed.text, name, blamed.field)
        return found

    def _build(self, indices: Sequence[int]) -> Callable[[bytes], Iterable[int] | None] | None:
        re2 = load_re2()
        if re2 is None or not indices or sum(self.patterns[i].program_size for i in indices) > _SET_PROGRAM:
            return None
        scanner = re2.Set.MatchSet(re2_options(re2, _SET_MEMORY))
        last = self.patterns[indices[-1]]
        start = time.thread_time()
        try:
            for i in indices:
                scanner.Add(self.patterns[i].text.encode())
            scanner.Compile()
        except re2.error:
            return None  # too large together: each pattern is then asked by itself
        self._budget.charge(time.thread_time() - start, last.text, None, last.field)
        scan: Callable[[bytes], Iterable[int] | None] = scanner.Match
        return scan
