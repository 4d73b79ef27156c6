"""How long the regular expressions of one plan may take, all together and each."""

from __future__ import annotations

import threading
import time

from .errors import ConfigError

#: what a name more may take: a look-around of the usual kind needs a few microseconds, and models have many names
_NAME_S, _NAMES_S = 5e-6, 0.25
#: a match this short by the wall clock, in seconds, has not waited for anything; and the CPU's clock is slow to ask
PLAIN_S = 2e-5


class PatternBudget:
    """Time that all regular expressions of one plan may spend together, in seconds of CPU time.

    ``total_s`` bounds the sum of compiling and matching; ``per_match_s`` bounds a single match. Threads may share it.
    """

    __slots__ = ("_base_s", "_lock", "per_match_s", "spent_s", "total_s")

    def __init__(self, total_s: float = 1.0, per_match_s: float = 0.05) -> None:
        self.total_s = self._base_s = total_s
        self.per_match_s = per_match_s
        self.spent_s = 0.0
        self._lock = threading.Lock()

    def widen(self, names: int) -> None:
        """Allow more when there are many names, but never so much that a hostile config could take seconds."""
        self.total_s = max(self.total_s, self._base_s + min(names * _NAME_S, _NAMES_S))

    def limit(self) -> float:
        """Seconds that the next match may take; never 0, which some engines read as "no limit"."""
        return max(min(self.per_match_s, self.total_s - self.spent_s), 1e-4)

    @staticmethod
    def since(start_s: float, cpu_s: float) -> float:
        """Seconds of CPU time of this thread since ``start_s`` by ``perf_counter`` and ``cpu_s`` by ``thread_time``.

        A thread that waits for its turn has not spent the time.
        """
        elapsed = time.perf_counter() - start_s
        return elapsed if elapsed < PLAIN_S else time.thread_time() - cpu_s

    def charge(self, seconds: float, text: str, name: str | None = None, field: str | None = None) -> None:
        """Record a measured duration. Raises ``ConfigError`` when the budget is used up."""
        with self._lock:
            self.spent_s += max(seconds, 0.0)
        if self.spent_s > self.total_s:
            raise out_of_time(text, name, field, f"{self.total_s:g} s for all regular expressions together")


def out_of_time(text: str, name: str | None, field: str | None, limit: str) -> ConfigError:
    """The error for the regular expression ``text``, asked about ``name``, that exceeds ``limit``."""
    where = f" on {clip(name)!r}" if name is not None else ""
    return ConfigError(
        f"the regular expression {clip(text)!r} ran out of time{where}",
        field=field,
        observed="no answer",
        required=f"one within {limit}",
        remedy="write it without nested repetition, look-around and back-references; google-re2 helps where missing",
        code="QD512",
    )


def clip(text: str) -> str:
    """``text`` short enough for a message."""
    return text if len(text) <= 120 else text[:117] + "..."
