"""What a check is, and what comes of it."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ...registry.errors import QuantDispatchError
from .layers import Layer

#: the kit's version: a check that is added makes a new second number, one that asks more of an old check a new first
KIT = "1.1"
TIERS = {
    "load": "it is found, imported and bound",
    "table": "it takes what it says, and no more",
    "numerics": "it computes what it should",
    "lifecycle": "it is packed, copied, saved and called again",
}


F = TypeVar("F", bound=Callable[..., None])


class Nonconformance(AssertionError):
    """What is tested does not do what a check demands. The message says what is wrong."""


class NotApplicable(Exception):
    """A check that has nothing to ask here; the message is the reason."""


@dataclass(frozen=True)
class Check:
    """``name``: ``"tier/what"``. ``scope``: asked once (``"subject"``), of each kernel or rule (``"part"``), of each
    of its layers (``"layer"``), or of a few of them (``"sample"``). ``needs``: asked only where this capability is
    declared. ``since``: the kit's version that it came with."""

    name: str
    function: Callable[..., None]
    scope: str
    needs: str | None = None
    since: str = "1.0"

    @property
    def tier(self) -> str:
        return self.name.partition("/")[0]

    @property
    def summary(self) -> str:
        """The first sentence of the check's own words."""
        return " ".join((self.function.__doc__ or "").split()).partition(". ")[0].removesuffix(".")


class Checks:
    """The checks of one kind of subject, in the order in which they are asked."""

    def __init__(self) -> None:
        self.all: list[Check] = []

    @classmethod
    def of(cls, *several: Checks) -> Checks:
        """The checks of ``several``, in that order."""
        made = cls()
        made.all = [check for checks in several for check in checks.all]
        return made

    def __call__(self, name: str, scope: str, *, needs: str | None = None, since: str = "1.0") -> Callable[[F], F]:
        """Registers a function as a check."""

        def register(function: F) -> F:
            self.all.append(Check(name, function, scope, needs, since))
            return function

        return register


@dataclass(frozen=True)
class Item:
    """One check of one part (a kernel's or a rule's name, ``""`` for the whole) for one layer, where it takes one."""

    check: Check
    part: str = ""
    layer: Layer | None = None

    @property
    def id(self) -> str:
        """``"numerics/output mine/linear: int4 symmetric, group 32; 64x128; bfloat16"``."""
        text = f"{self.check.name} {self.part}".rstrip()
        return text if self.layer is None else f"{text}: {self.layer}"


#: outcomes that let a run pass
GOOD = frozenset({"passed", "skipped", "expected failure"})


@dataclass(frozen=True)
class Result:
    """``outcome``: ``passed``, ``failed``, ``skipped`` (the message says why), ``expected failure``, or ``unexpected
    pass``, which counts as failed."""

    item: Item
    outcome: str
    message: str = ""
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        return self.outcome in GOOD

    def to_json(self) -> dict[str, Any]:
        item = self.item
        return {
            "check": item.check.name,
            "tier": item.check.tier,
            "part": item.part,
            "layer": None if item.layer is None else str(item.layer),
            "outcome": self.outcome,
            "message": self.message,
            "seconds": round(self.seconds, 4),
        }


def perform(item: Item, ask: Callable[[], None], expected: str | None) -> Result:
    """Asks, and makes a result of whatever comes. ``expected``: why this is expected to fail."""
    started = time.perf_counter()
    try:
        ask()
    except NotApplicable as reason:
        return Result(item, "skipped", str(reason), time.perf_counter() - started)
    # what is tested may raise anything, even that the process should end, and that is what is found wrong with it
    except (Exception, SystemExit) as error:
        message, failed = _words(error), True
    else:
        message, failed = "", False
    seconds = time.perf_counter() - started
    if expected is None:
        return Result(item, "failed" if failed else "passed", message, seconds)
    if failed:
        return Result(item, "expected failure", f"{expected}: {message}", seconds)
    return Result(
        item, "unexpected pass", f"expected to fail ({expected}), and passes: take it out of expected_failures", seconds
    )


def _words(error: BaseException) -> str:
    if isinstance(error, Nonconformance):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{place.filename.rpartition('/')[2]}:{place.lineno}, in {place.name}"
    try:
        text = " ".join(str(error).split())
    except Exception as worse:  # its words are somebody else's code too
        text = f"its text cannot be had, {type(worse).__name__}"
    kind = "refuses" if isinstance(error, QuantDispatchError) else "raises"
    return f"{kind}: {type(error).__name__}: {text} ({where})"
