"""Are the schemes that rules name there, and are they schemes?"""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import PluginError
from ..lazy import load_target
from ..rules.rule import Rule
from ..scheme import Scheme
from .findings import Finding, finding, placed


def scheme_findings(rules: Iterable[Rule]) -> list[Finding]:
    """A finding for each rule whose scheme cannot be imported, or is no subclass of ``Scheme``."""
    found = []
    for rule in rules:
        reason = fault(rule)
        if reason is not None:
            text = f"rule {placed(rule)} names the scheme {rule.scheme}: {reason}"
            remedy = "name a subclass of quantdispatch.Scheme as 'module:attr'"
            found.append(finding("unusable-scheme", text, rules=[rule], remedy=remedy))
    return found


def fault(rule: Rule) -> str | None:
    """Why a rule's scheme cannot be used, or ``None``."""
    try:
        scheme = load_target(rule.scheme)
    except PluginError as error:
        return str(error)
    except Exception as error:  # whatever a stranger's module raises when it is imported
        return f"{type(error).__name__}: {error}"
    if not (isinstance(scheme, type) and issubclass(scheme, Scheme)):
        return f"it is {scheme!r}, not a subclass of Scheme"
    return None
