"""The static checks of rules, for a plugin's tests: ``assert_rules_clean("my_plugin")`` is all that it takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..registry.rules import Rule
from .registries import rules_of

if TYPE_CHECKING:
    from ..registry.analysis import Finding


def check_rules(rules: Iterable[Rule], **options: Any) -> tuple[Finding, ...]:
    """The findings of :func:`quantdispatch.registry.analysis.check_rules`, imported when it is used."""
    from ..registry.analysis import check_rules as check

    return check(tuple(rules), **options)


def assert_rules_clean(*plugins: Any, **options: Any) -> None:
    """Raises ``AssertionError`` listing every finding of the static checks of the rules of ``plugins``.

    ``plugins``: modules, their names, objects with hooks, rules, or lists of rules; they are checked beside built-in
    rules, as they will live. ``options``: of ``check_rules``. Raises ``PluginError`` for a plugin that cannot be
    collected, and ``ValueError`` when there is no rule to check.
    """
    __tracebackhide__ = True
    rules = [rule for plugin in plugins for rule in _rules(plugin)]
    if not rules:
        raise ValueError("no rules to check")
    findings = check_rules(rules, **options)
    if findings:
        listed = "\n".join(f"  {finding}" for finding in findings)
        raise AssertionError(f"the static checks of {len(rules)} rules find:\n{listed}")


def _rules(plugin: Any) -> list[Rule]:
    if isinstance(plugin, Rule):
        return [plugin]
    return list(plugin) if isinstance(plugin, (list, tuple)) else rules_of(plugin)
