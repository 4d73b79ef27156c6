"""Fuzz target: patterns of targets and ignore lists. An answer, that of Python's ``re``, or an error of ours."""

from __future__ import annotations

import re
import warnings

import fuzzing

from quantdispatch.registry.targets import TargetIndex

#: where the answers are compared: what ``re``, which nothing can stop, has soon done with
SHORT_PATTERN, SHORT_NAME = 24, 12


def check(data: bytes) -> None:
    """Lines: a name, and the entries of a list."""
    name, *entries = data.decode("utf-8", "surrogateescape").split("\n")
    patterns = [entry if entry.startswith("=") else f"re:{entry}" for entry in entries[:64]]
    index = TargetIndex([("g", patterns)], patterns[::-1])
    match = index.match(name, ["Linear"])
    ignored = index.ignored_by(name, ["Linear"])
    if (match is None) != (ignored is None):
        raise fuzzing.Unacceptable(f"{match} as a target, {ignored} as ignored")
    if len(name) > SHORT_NAME or not name.isascii():
        return
    for entry in patterns:
        if len(entry) <= SHORT_PATTERN and entry.isascii() and entry.startswith("re:"):
            alone = TargetIndex([("g", [entry])]).match(name, ["Linear"]) is not None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                truth = re.match(entry[3:], name) is not None
            if alone != truth:
                raise fuzzing.Unacceptable(f"{entry!r} on {name!r}: {alone}, and by Python's re {truth}")
