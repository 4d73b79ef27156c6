"""Are the schemes that rules name there, and are they schemes?"""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import PluginError
from ..lazy import load_target
from ..rules.rule import Rule
from ..scheme import scheme_fault
from .findings import Finding, finding, placed


def scheme_findings(rules: Iterable[Rule]) -> list[Finding]:
    """A finding for each rule whose scheme cannot be imported, or is no class of schemes that can be made."""
    found = []
    for rule in rules:
        reason = fault(rule)
        if reason is not None:
            text = f"rule {placed(rule)} names the scheme {rule.scheme}: {reason}"
            remedy = "name a subclass of quantdispatch.Scheme as 'module:attr', with every abstract method"
            found.append(finding("unusable-scheme", text, rules=[rule], remedy=remedy))
    return found


def fault(rule: Rule) -> str | None:
    """Why a rule's scheme cannot be used, or ``None``."""
    try:
        scheme = load_target(rule.scheme)
    except PluginError as error:
        return str(error)
    reason = scheme_fault(scheme)
    return None if reason is None else f"it is {reason}"
