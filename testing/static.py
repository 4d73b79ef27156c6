"""The static checks of rules, for a plugin's tests: ``assert_rules_clean("my_plugin")`` is all that it takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..registry.rules import Rule
from .registries import registry_with

if TYPE_CHECKING:
    from ..registry.analysis import Finding


def check_rules(rules: Iterable[Rule], **options: Any) -> tuple[Finding, ...]:
    """The findings of :func:`quantdispatch.registry.analysis.check_rules`, imported when it is used."""
    from ..registry.analysis import check_rules as check

    return check(tuple(rules), **options)


def assert_rules_clean(*plugins: Any, **options: Any) -> None:
    """Raises ``AssertionError`` listing every finding of the static checks that concerns a rule of ``plugins``.

    ``plugins``: as of :func:`registry_with`: modules, their names, or single rules; they are checked together with the
    built-in rules, as they will live. A list of rules is taken for several. ``options``: of ``check_rules``. Raises
    ``PluginError`` where a plugin cannot be collected or conflicts.
    """
    __tracebackhide__ = True
    given = [item for plugin in plugins for item in (plugin if isinstance(plugin, (list, tuple)) else (plugin,))]
    registry = registry_with(*given)
    findings = check_rules(registry.rules.rules, **options)
    if findings:
        listed = "\n".join(f"  {finding}" for finding in findings)
        raise AssertionError(f"{len(findings)} findings of the static checks of rules:\n{listed}")
