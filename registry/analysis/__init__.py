"""Static checks of rules, without a checkpoint: ``from quantdispatch.registry.analysis import check_rules``.

Everything is relative to the legal universe (:mod:`..legal`): what is found is found about configs that exist.
"""

from __future__ import annotations

from ..facts import LayerFacts
from ..legal import LEGAL, Universe
from ..predicates import Box
from .check import FUEL, check_rules
from .findings import CODES, Code, Finding, facts_json, finding
from .judge import Judge
from .matrix import Matrix, of_box
from .paste import config_of
from .sweep import Fuel, OutOfFuel

__all__ = [
    "CODES", "FUEL", "LEGAL", "Code", "Finding", "Fuel", "Matrix", "OutOfFuel", "Universe", "check_rules", "config_of",
    "facts_json", "finding", "layer_in",
]  # fmt: skip


def layer_in(box: Box) -> LayerFacts | None:
    """A legal layer inside ``box``, or ``None`` when there is none."""
    judge = Judge([], extra=[of_box(box)])
    spots = judge.spots(0, Fuel(FUEL))
    return judge.witness(spots[0]) if spots else None
