"""Layers that are left as they are: ignored ones, and those no config group targets."""

from __future__ import annotations

from ..predicates import When
from ..values import ABSENT as Absent
from .rule import Rule

RULES = (
    Rule(
        name="dense",
        summary="left unquantized",
        when=When(weights=Absent, inputs=Absent, outputs=Absent),
        scheme="quantdispatch.schemes.dense:Dense",
    ),
)
