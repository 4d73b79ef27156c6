"""What other engines do with the same checkpoint: vLLM 0.32.0 and SGLang 0.5.23, their chains of ``if``s as data.

:func:`notes` gives a layer's ``equivalents`` and ``differs``; :func:`explain` adds to an error what an engine would run
in its place. The lists of cases are built when they are first asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..environment import Environment
    from ..errors import QuantDispatchError
    from ..facts import LayerFacts
    from ..rules import Rule
    from .facts import Sight


def notes(
    rule: Rule, facts: LayerFacts, scheme: str, sight: Sight, environment: Environment
) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """``(equivalents, differs)`` for one layer on one device; what the rule itself says of an engine goes first."""
    from .compare import compare
    from .facts import View

    own = rule.equivalents_for(facts), rule.differs_for(facts)
    equivalents, differs = compare(View(facts, sight), scheme, environment.device, environment.arch)
    told = own[0].keys() | own[1].keys()
    return (
        {**{k: v for k, v in equivalents.items() if k not in told}, **own[0]},
        {**{k: v for k, v in differs.items() if k not in told}, **own[1]},
    )


def explain(error: QuantDispatchError, facts: LayerFacts, sight: Sight, environment: Environment) -> None:
    """Put into ``error.engines`` what each engine would run where we raise this."""
    from .compare import sentences
    from .facts import View

    error.engines = sentences(View(facts, sight), environment.device, environment.arch)
