"""Regular expressions that come from untrusted files.

``config.json`` may carry ``re:`` targets, and a file downloaded from a hub must not be able to hang the process. The
meaning stays that of compressed-tensors, ``re.match(text, name)``: what Python's ``re`` refuses is an error here, and
what it accepts matches the same names. Python's own engine never runs, because it cannot be stopped:

* RE2 (package ``google-re2``), linear in the length of the name, where its syntax means the same as Python's;
* the ``regex`` package under a time limit for the rest (look-around, back-references, names that are not plain ASCII),
  and for everything when RE2 is not installed. Running out of time is a ``ConfigError``, never "no match".

One difference is left: what is a letter, digit or space outside of ASCII, and whether U+001C to U+001F are spaces,
is for ``regex`` to say. Names of modules are Python identifiers joined by dots.
"""

from __future__ import annotations

import re
import time
import warnings
from functools import cached_property
from typing import Any

from .errors import ConfigError

MAX_REGEXES = 1024
"""Distinct regular expressions in one configuration; published checkpoints have at most a few dozen."""
MAX_REGEX_LENGTH = 4096
"""Characters of one regular expression."""
MAX_REGEX_TOTAL = 64 * 1024
"""Characters of all regular expressions of one configuration together."""

MAX_WIDE_RANGES = 16
"""Character ranges beyond ASCII in one regular expression: Python's ``re`` spends milliseconds on compiling each."""

FREE_S = 50e-6
"""Seconds that a look-up may take without being charged; an honest match takes a few microseconds."""

_RE2_MEMORY = 1 << 20  # bytes; bounds the size of an RE2 program, and so the time for one character of a name


class PatternBudget:
    """Time that all regular expressions of one plan may spend together, in seconds of the calling thread's CPU time.

    ``total_s`` bounds the sum of compile time and of the excess of each match over what an honest one costs;
    ``per_match_s`` bounds a single match.
    """

    __slots__ = ("per_match_s", "spent_s", "total_s")

    def __init__(self, total_s: float = 1.0, per_match_s: float = 0.05) -> None:
        self.total_s = total_s
        self.per_match_s = per_match_s
        self.spent_s = 0.0

    def limit(self) -> float:
        """Seconds that the next match may take; never 0, which some engines read as "no limit"."""
        return max(min(self.per_match_s, self.total_s - self.spent_s), 1e-4)

    def charge(self, seconds: float, text: str, name: str | None = None, field: str | None = None) -> None:
        """Record a measured duration. Raises ``ConfigError`` when the budget is used up."""
        self.spent_s += max(seconds, 0.0)
        if self.spent_s > self.total_s:
            raise _out_of_time(text, name, field, f"{self.total_s:g} s for all regular expressions together")


def _out_of_time(text: str, name: str | None, field: str | None, limit: str) -> ConfigError:
    where = f" on {_clip(name)!r}" if name is not None else ""
    return ConfigError(
        f"the regular expression {_clip(text)!r} ran out of time{where}",
        field=field,
        required=limit,
        remedy="write it without nested repetition, look-around and back-references; google-re2 helps where missing",
    )


def _clip(text: str) -> str:
    return text if len(text) <= 120 else text[:117] + "..."


# ---------------------------------------------------------------------------------------------- RE2, where it agrees

# The syntax that means the same to RE2 and to Python's re on printable ASCII names. Anything else goes to the other
# engine: \Z, \B, look-around, back-references, possessive and atomic groups, flags but a leading (?i), {,n} (literal
# text to RE2), nested brackets, any character outside of ASCII. Possessive repetition keeps this check itself linear.
_QUANTIFIER = r"(?:[*+?]|\{[0-9]{1,3}(?:,[0-9]{0,3})?\})\??"
_PUNCTUATION = r"\\[!-/:-@\[-`{-~]"
_CLASS_CHAR = r"(?:[A-Za-z0-9_.,:;/ @+*?(){}$#%=<>!'\"]|" + _PUNCTUATION + ")"
_CLASS = rf"\[\^?-?(?:\\[dwsDWS]|{_CLASS_CHAR}(?:-{_CLASS_CHAR})?)++-?\]"
_ATOM = rf"(?:[A-Za-z0-9_/ ,:;<>=!@#%&~'\"`.-]|\\[dwsDWS]|{_PUNCTUATION}|{_CLASS})"
_PORTABLE = re.compile(rf"(?:\(\?i\))?(?:{_ATOM}(?:{_QUANTIFIER})?+|\((?:\?:)?|\)(?:{_QUANTIFIER})?+|\||[\^$]|\\b)*+")


def load_re2() -> Any:
    """The RE2 module, or ``None`` where it is not installed."""
    try:
        import re2
    except ImportError:
        return None
    # Other distributions install a module of the same name and another interface.
    return re2 if hasattr(re2, "Set") and hasattr(re2, "Options") else None


def re2_options(re2: Any, max_mem: int) -> Any:
    """RE2 options; ``max_mem`` in bytes."""
    options = re2.Options()
    options.max_mem = max_mem
    options.log_errors = False
    options.never_capture = True
    return options


def plain(name: str) -> bool:
    """Whether ``name`` is printable ASCII: there ``.``, ``$``, ``\\d``, ``\\w``, ``\\s`` and ``\\b`` mean the same to
    every engine (no line feed, no Unicode digits)."""
    return name.isascii() and name.isprintable()


# ------------------------------------------------------------------------------------------- regex, where it does not

_TOKEN = re.compile(
    r"(?P<comment>\(\?\#[^)]*\))|(?P<named>\\N\{[^}]*\})|(?P<escape>\\.)|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*+\])"
    r"|(?P<repeat>\{(?:[0-9]+(?:,[0-9]*)?|,[0-9]*)\})|(?P<brace>\{)|(?P<other>.)",
    re.DOTALL,
)
_IN_SET = re.compile(r"\\.|\[", re.DOTALL)
_VERBOSE = re.compile(r"\(\?[aiLmsu]*x")


def _for_regex(text: str) -> str:
    """``text`` as the ``regex`` package has to see it to mean what ``re`` means by it.

    There a brace that is no repetition would ask for fuzzy matching, and ``[[:alpha:]]`` would be a POSIX class.
    """
    if _VERBOSE.search(text):
        if "{" in text or "[" in text:
            raise ConfigError(
                f"the regular expression {_clip(text)!r} uses the verbose flag together with brackets or braces",
                remedy="write it without (?x)",
            )
        return text
    parts: list[str] = []
    for token in _TOKEN.finditer(text):
        kind, piece = token.lastgroup, token.group()
        if kind == "brace":
            piece = r"\{"
        elif kind == "repeat" and piece.startswith("{,"):
            piece = "{0" + piece[1:]
        elif kind == "set":
            head = 2 if piece.startswith("[^") else 1
            piece = piece[:head] + _IN_SET.sub(lambda m: m[0] if len(m[0]) > 1 else r"\[", piece[head:])
        parts.append(piece)
    return "".join(parts)


# -------------------------------------------------------------------------------------------------------- one pattern


class Pattern:
    """A checked regular expression; build it with :func:`compile_pattern`.

    Attributes: ``text`` (without ``re:``), ``engine`` (``"re2"`` or ``"regex"``: what answers for plain names).
    """

    def __init__(self, text: str, budget: PatternBudget, field: str | None) -> None:
        self.text = text
        self.field = field
        self._budget = budget

    def match(self, name: str) -> bool:
        """``re.match(self.text, name) is not None``. Raises ``ConfigError`` when it runs out of time."""
        start = time.thread_time()
        found = self.ask(name, limited=not plain(name))
        self._budget.charge(time.thread_time() - start - FREE_S, self.text, name, self.field)
        return found

    def ask(self, name: str, *, limited: bool) -> bool:
        """As :meth:`match`, for a caller that knows whether the name is :func:`plain` and does the charging.

        ``limited`` asks the engine with the time limit, which is right for any name; the other one is for plain names.
        """
        if not limited and self._re2 is not None:
            return self._re2.match(name.encode()) is not None
        self._budget.charge(0.0, self.text, name, self.field)
        limit = self._budget.limit()
        try:
            return self._regex.match(name, timeout=limit) is not None
        except TimeoutError:
            self._budget.spent_s += limit  # a caller that carries on after the error pays all the same
            raise _out_of_time(self.text, name, self.field, f"{self._budget.per_match_s:g} s for one match") from None
        except (MemoryError, RecursionError) as exc:
            raise _out_of_time(self.text, name, self.field, "bounded memory") from exc

    @property
    def engine(self) -> str:
        return "regex" if self._re2 is None else "re2"

    @property
    def program_size(self) -> int:
        """RE2 instructions; 0 where RE2 does not serve this pattern."""
        return 0 if self._re2 is None else self._re2.programsize

    @cached_property
    def _re2(self) -> Any:
        re2 = load_re2()
        if re2 is None or not _PORTABLE.fullmatch(self.text):
            return None
        start = time.thread_time()
        try:
            compiled = re2.compile(self.text.encode(), re2_options(re2, _RE2_MEMORY))
        except re2.error:  # too large a program, or a count above RE2's limit: not a fault of the pattern
            compiled = None
        self._budget.charge(time.thread_time() - start, self.text, None, self.field)
        return compiled

    @cached_property
    def _regex(self) -> Any:
        import regex

        start = time.thread_time()
        try:
            compiled = regex.compile(_for_regex(self.text), regex.VERSION0, cache_pattern=False)
        except (regex.error, RecursionError, OverflowError, MemoryError) as exc:
            raise _invalid(self.text, self.field, f"cannot be run under a time limit: {exc}") from exc
        self._budget.charge(time.thread_time() - start, self.text, None, self.field)
        return compiled


_WIDE_RANGE = re.compile(r"-(?:[^\x00-\x7f]|\\[uUN])")


def compile_pattern(text: str, *, budget: PatternBudget | None = None, field: str | None = None) -> Pattern:
    """Check ``text``, what follows ``re:`` in a target, and return it ready to match names.

    ``budget`` is shared by all patterns of a plan; without it the pattern gets its own. ``field`` is the key path for
    messages. Raises ``ConfigError``: too long, or refused by Python's ``re`` (with the position).
    """
    if len(text) > MAX_REGEX_LENGTH:
        raise ConfigError(
            f"the regular expression {_clip(text)!r} is too long",
            field=field,
            observed=f"{len(text)} characters",
            required=f"at most {MAX_REGEX_LENGTH}",
        )
    if (wide := len(_WIDE_RANGE.findall(text))) > MAX_WIDE_RANGES:
        raise ConfigError(
            f"the regular expression {_clip(text)!r} has too many character ranges beyond ASCII",
            field=field,
            observed=wide,
            required=f"at most {MAX_WIDE_RANGES}",
        )
    budget = budget or PatternBudget()
    start = time.thread_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # re warns of what may change its meaning one day; we follow what it does
            re.compile(text)
    except re.error as exc:
        position = f" at position {exc.pos}" if exc.pos is not None else ""
        raise _invalid(text, field, f"{exc.msg}{position}") from exc
    except (RecursionError, OverflowError, MemoryError) as exc:
        raise _invalid(text, field, str(exc) or type(exc).__name__) from exc
    finally:
        elapsed = time.thread_time() - start
    budget.charge(elapsed, text, None, field)
    return Pattern(text, budget, field)


def _invalid(text: str, field: str | None, why: str) -> ConfigError:
    return ConfigError(f"invalid regular expression {_clip(text)!r}: {why}", field=field, remedy="correct the pattern")
