"""Regular expressions that come from untrusted files.

``config.json`` may carry ``re:`` targets, and a file downloaded from a hub must not be able to hang the process. The
meaning stays that of compressed-tensors, ``re.match(text, name)``: what Python's ``re`` refuses is an error here, and
what it accepts matches the same names. Python's own engine never runs, because it cannot be stopped:

* RE2 (package ``google-re2``), linear in the length of the name, where its syntax means the same as Python's;
* the ``regex`` package under a time limit for the rest (look-around, back-references, names that are not plain ASCII),
  and for everything when RE2 is not installed. Running out of time is a ``ConfigError``, never "no match".

One difference is left: which characters beyond ASCII are the same without regard to case is for ``regex`` to say.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from .errors import ConfigError
from .pattern_budget import PatternBudget as PatternBudget
from .pattern_budget import clip, out_of_time
from .pattern_scanner import Scanner, build_scanner
from .pattern_syntax import for_regex, portable, program_size

MAX_REGEXES = 1024
"""Distinct regular expressions in one configuration; published checkpoints have at most a few dozen."""
MAX_REGEX_LENGTH = 4096
"""Characters of one regular expression."""
MAX_REGEX_TOTAL = 64 * 1024
"""Characters of all regular expressions of one configuration together."""

MAX_REGEX_SIZE = 50_000
"""About how many steps one regular expression may have when its counted repetitions are written out, which is what
engines do, at tens to hundreds of bytes a step."""
MAX_WIDE_RANGES = 16
"""Character ranges beyond ASCII in one regular expression: Python's ``re`` spends milliseconds on compiling each."""

_STRETCH_S = 1e-3  # seconds of matching that go by between two looks at what is left of the budget
_RETRIES = 50  # of a match that ran into the limit while its thread was not running

# -------------------------------------------------------------------------------------------------------- one pattern


class Pattern:
    """A regular expression, ``text``, what follows ``re:`` in a target; ``field`` is its key path for messages.

    It is not checked before :meth:`check`; :func:`compile_pattern` gives a checked one.
    """

    def __init__(self, text: str, budget: PatternBudget, field: str | None = None) -> None:
        self.text = text
        self.field = field
        self._budget = budget

    def check(self) -> None:
        """Raises ``ConfigError`` where Python's ``re`` refuses ``text``, with the position."""
        start = time.thread_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # re warns of what may change its meaning one day; we follow it
                re.compile(self.text)
        except re.error as exc:
            position = f" at position {exc.pos}" if exc.pos is not None else ""
            raise self._invalid(f"{exc.msg}{position}") from exc
        except (RecursionError, OverflowError, MemoryError) as exc:
            raise self._invalid(str(exc) or type(exc).__name__) from exc
        finally:
            elapsed = time.thread_time() - start
        self._budget.charge(elapsed, self.text, None, self.field)

    def check_length(self) -> None:
        """Raises ``ConfigError`` where ``text`` is too long, or would be too slow to compile."""
        text = self.text
        if len(text) > MAX_REGEX_LENGTH:
            raise ConfigError(
                f"the regular expression {clip(text)!r} is too long",
                field=self.field,
                observed=f"{len(text)} characters",
                required=f"at most {MAX_REGEX_LENGTH}",
                code="QD511",
            )
        if (size := program_size(text)) > MAX_REGEX_SIZE:
            raise ConfigError(
                f"the regular expression {clip(text)!r} repeats too much",
                field=self.field,
                observed=f"about {size} steps when written out",
                required=f"at most {MAX_REGEX_SIZE}",
                code="QD511",
            )
        if not text.isascii() or "\\" in text:
            wide = len(_WIDE_RANGE.findall(text))
            if wide > MAX_WIDE_RANGES:
                raise ConfigError(
                    f"the regular expression {clip(text)!r} has too many character ranges beyond ASCII",
                    field=self.field,
                    observed=wide,
                    required=f"at most {MAX_WIDE_RANGES}",
                    code="QD511",
                )

    def match(self, name: str) -> bool:
        """``re.match(self.text, name) is not None``. Raises ``ConfigError`` when it runs out of time."""
        found = self._scanner.scan(name) if self._scanner is not None else None
        return self.ask(name) if found is None else bool(found)

    def ask(self, name: str) -> bool:
        """As :meth:`match`, by the engine with the time limit."""
        budget = self._budget
        for _ in range(_RETRIES):
            limit = budget.limit()
            cpu_s, start = time.thread_time(), time.perf_counter()
            try:
                found = self._regex.match(name, timeout=limit) is not None
            except TimeoutError:
                spent = time.thread_time() - cpu_s
                budget.charge(spent, self.text, name, self.field)
                if spent >= limit / 2:
                    break
                continue  # the engine's limit is one of the wall clock
            except (MemoryError, RecursionError) as exc:
                raise out_of_time(self.text, name, self.field, "bounded memory") from exc
            budget.charge(budget.since(start, cpu_s), self.text, name, self.field)
            return found
        raise out_of_time(self.text, name, self.field, f"{budget.per_match_s:g} s for one match")

    def ask_many(self, names: Sequence[str]) -> list[bool]:
        """:meth:`ask` of each name. The clocks are read once a stretch, so that the budget is spent on matching."""
        budget, match = self._budget, self._regex.match
        found: list[bool] = []
        done = 0
        while done < len(names):
            limit = budget.limit()
            cpu_s, end = time.thread_time(), time.perf_counter() + _STRETCH_S
            try:
                while done < len(names) and time.perf_counter() < end:
                    found.append(match(names[done], timeout=limit) is not None)
                    done += 1
                stuck = False
            except (TimeoutError, MemoryError, RecursionError):
                stuck = True
            budget.charge(time.thread_time() - cpu_s, self.text, names[min(done, len(names) - 1)], self.field)
            if stuck:
                found.append(self.ask(names[done]))
                done += 1
        return found

    @property
    def engine(self) -> str:
        """``"re2"`` or ``"regex"``: what answers for plain names."""
        return "regex" if self._scanner is None else "re2"

    @cached_property
    def _scanner(self) -> Scanner | None:
        if not portable(self.text):
            return None
        return build_scanner([(self.text, self.field)], self._budget)[0]

    @cached_property
    def _regex(self) -> Any:
        import regex

        start = time.thread_time()
        try:
            compiled = regex.compile(for_regex(self.text), regex.VERSION0, cache_pattern=False)
        except (regex.error, ValueError, RecursionError, OverflowError, MemoryError) as exc:
            raise self._invalid(f"cannot be run under a time limit: {exc}") from exc
        self._budget.charge(time.thread_time() - start, self.text, None, self.field)
        return compiled

    def _invalid(self, why: str) -> ConfigError:
        return ConfigError(
            f"invalid regular expression {clip(self.text)!r}: {why}",
            field=self.field,
            observed=clip(self.text),
            required="a regular expression of Python's re",
            remedy="correct the pattern",
            code="QD510",
        )


_WIDE_RANGE = re.compile(r"-(?:[^\x00-\x7f]|\\[uUN])")


def compile_pattern(text: str, *, budget: PatternBudget | None = None, field: str | None = None) -> Pattern:
    """Check ``text``, what follows ``re:`` in a target, and return it ready to match names.

    ``budget`` is shared by all patterns of a plan; without it the pattern gets its own. ``field`` is the key path for
    messages. Raises ``ConfigError``: too long, or refused by Python's ``re`` (with the position).
    """
    pattern = Pattern(text, budget or PatternBudget(), field)
    pattern.check_length()
    pattern.check()
    return pattern
