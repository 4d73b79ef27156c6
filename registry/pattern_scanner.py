"""RE2, where it is installed: many regular expressions answered by one pass over a name, in time linear in its length.

Only what :func:`.pattern_syntax.portable` lets through may be added, and only names of printable ASCII may be asked
about: there RE2 means what Python's ``re`` means.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from .pattern_budget import PLAIN_S, PatternBudget
from .pattern_syntax import as_search, program_size

_MEMORY = 32 << 20  # bytes, for one program and its automaton
_MAX_PROGRAM = 150_000  # instructions of one program
_MAX_WORK = 20_000_000  # instructions times characters: RE2 may take 0.1 s for that, and cannot be stopped meanwhile
_UNTIMED_S = 0.05  # seconds of scanning after which each scan is worth a look at the thread's clock
_FREE_S = 2e-6  # about what any scan takes; without it a large model could use up the time that a plan has
_FEW = 16  # names that are scanned one by one
_AT_ONCE = 64  # names joined for the first look ...
_SPLIT = 8  # ... and parts that they are split into for the next, if anything is found in them
_TRIALS = 32  # looks, after which one in so many must have found nothing to go on
_JOINED_WORK = 2  # times the work allowed for one name

Expression = tuple[str, str | None]
"""A regular expression and its key path for messages."""


def load_re2() -> Any:
    """The RE2 module, or ``None`` where it is not installed."""
    try:
        import re2
    except ImportError:
        return None
    # Other distributions install a module of the same name and another interface.
    return re2 if hasattr(re2, "Set") and hasattr(re2, "Options") else None


def plain(name: str) -> bool:
    """Whether ``name`` is printable ASCII: there ``.``, ``$``, ``\\d``, ``\\w``, ``\\s`` and ``\\b`` mean the same to
    every engine (no line feed, no Unicode digits)."""
    return name.isascii() and name.isprintable()


class Scanner:
    """Expressions, in their order. Build it with :func:`build_scanner`.

    RE2 answers "no" to everything when its automaton gets no memory. So the last expression of each program matches
    always, and an answer without it is none. Threads may share a scanner.
    """

    def __init__(
        self, re2: Any, expressions: Sequence[Expression], match: Callable[[bytes], list[int]], budget: PatternBudget
    ) -> None:
        self._re2 = re2
        self._texts = [text for text, _ in expressions]
        self._match = match
        self._budget = budget
        self._longest = _MAX_WORK // sum(map(program_size, self._texts))
        self._blamed = _largest(expressions)
        self._match_joined: Callable[[bytes], list[int]] | None = None

    def takes(self, name: str) -> bool:
        """Whether the name may be scanned at all: plain, and not so long that the scan could not be stopped in time."""
        return len(name) <= self._longest and name.isascii() and name.isprintable()

    def scan(self, name: str) -> tuple[int, ...] | None:
        """Ascending numbers of the expressions that match ``name``; ``None`` where RE2 has no answer to give, as for a
        name that it does not :meth:`takes`. Raises ``ConfigError`` when time runs out."""
        if len(name) > self._longest or not name.isascii() or not name.isprintable():
            return None
        start = time.perf_counter()
        hits = self._match(name.encode())
        seconds = time.perf_counter() - start
        if seconds > _FREE_S:
            if seconds > PLAIN_S:
                # Was it work, or waiting for a turn? Doing it again tells; every scan's CPU time would cost more.
                cpu_s = time.thread_time()
                self._match(name.encode())
                seconds = 2 * (time.thread_time() - cpu_s)
            self._budget.charge(seconds - _FREE_S, self._blamed[0], name, self._blamed[1])
        if len(hits) == 1:
            return ()
        return tuple(sorted(hits)[:-1]) if hits else None

    def takes_all(self, names: Sequence[str]) -> bool:
        """Whether it :meth:`takes` each of the names."""
        return plain("".join(names)) and max(map(len, names), default=0) <= self._longest

    def scan_many(self, names: Sequence[str]) -> list[tuple[int, ...] | None]:
        """:meth:`scan` of each name. Stretches of names that no expression matches cost next to nothing: they are
        looked at together, joined by line feeds."""
        found: list[tuple[int, ...] | None] = [()] * len(names)
        if len(names) < _FEW:
            return list(map(self.scan, names))
        longest = self._longest * _JOINED_WORK
        average = sum(map(len, names)) // len(names) + 1
        at_once = min(max(longest // (average + average // 4), 1), _AT_ONCE)
        todo = [(start, min(start + at_once, len(names))) for start in range(0, len(names), at_once)]
        looked = cleared = 0
        while todo:
            start, end = todo.pop()
            if end - start == 1 or (looked > _TRIALS and cleared * _SPLIT < looked):
                found[start:end] = map(self.scan, names[start:end])
                continue
            joined = "\n".join(names[start:end])
            looked += 1
            if len(joined) <= longest and self._clear(joined):
                cleared += 1
                continue
            step = -(-(end - start) // _SPLIT)
            todo += [(at, min(at + step, end)) for at in range(start, end, step)]
        return found

    def _clear(self, joined: str) -> bool:
        """Whether none of the names joined by line feeds matches any expression."""
        if self._match_joined is None:
            self._match_joined = self._build_joined()
        start = time.thread_time()
        hits = self._match_joined(joined.encode())
        self._budget.charge(time.thread_time() - start, self._blamed[0], joined, self._blamed[1])
        return len(hits) == 1

    def _build_joined(self) -> Callable[[bytes], list[int]]:
        """A program that finds in lines joined together what it would find in any one of them. It may find more (a
        match that spans lines), never less, since nothing portable asks that something be absent."""
        start = time.thread_time()
        match = _compiled(self._re2, [f"(?m){as_search(text)}" for text in self._texts])[0]
        self._budget.charge(time.thread_time() - start, self._blamed[0], None, self._blamed[1])
        return match or _no_answer


def build_scanner(expressions: Sequence[Expression], budget: PatternBudget) -> tuple[Scanner | None, list[int]]:
    """A scanner for those of the portable ``expressions`` that RE2 accepts and has room for, and their numbers.

    Raises ``ConfigError`` when time runs out.
    """
    re2 = load_re2()
    room = _MAX_PROGRAM
    fitting: list[int] = []
    for number, (text, _) in enumerate(expressions):
        room -= program_size(text)
        if room < 0:
            break
        fitting.append(number)
    if re2 is None or not fitting:
        return None, []
    start = time.thread_time()
    match, taken = _compiled(re2, [as_search(expressions[number][0]) for number in fitting])
    blamed = _largest(expressions)
    budget.charge(time.thread_time() - start, blamed[0], None, blamed[1])
    if match is None or not taken:
        return None, []
    numbers = [fitting[number] for number in taken]
    return Scanner(re2, [expressions[number] for number in numbers], match, budget), numbers


def _largest(expressions: Sequence[Expression]) -> Expression:
    """What to name when RE2 takes too long."""
    return max(expressions, key=lambda expression: program_size(expression[0]))


def _compiled(re2: Any, texts: Sequence[str]) -> tuple[Callable[[bytes], list[int]] | None, list[int]]:
    """A search for all of them, ``None`` when it is too large, and the numbers of the ``texts`` that RE2 accepts."""
    program = re2.Set.SearchSet(_options(re2))
    taken = []
    for number, text in enumerate(texts):
        try:
            program.Add(text.encode())
        except re2.error:  # refused by Python as well, or a count above RE2's limit: not for RE2 to say
            continue
        taken.append(number)
    program.Add(b"")
    try:
        program.Compile()
    except re2.error:
        return None, []
    match: Callable[[bytes], list[int]] = program.Match
    return match, taken


def _options(re2: Any) -> Any:
    options = re2.Options()
    options.max_mem = _MEMORY
    options.log_errors = False
    options.never_capture = True
    options.encoding = re2.Options.Encoding.LATIN1
    return options


def _no_answer(_: bytes) -> list[int]:
    return []
