"""The registry that a table is tried against: built-in rules alone, with given plugins, or what is installed."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from ..registry.errors import PluginError
from ..registry.hookspecs import hookimpl
from ..registry.kernels import Backend, Kernel
from ..registry.plugins import Source, collect
from ..registry.registry import Registry, build, get_registry, standing_in
from ..registry.rules import Rule

#: what tests show as the distribution of plugins that are not installed
UNDER_TEST = "under test"


class _Loose:
    """Rules, kernels and backends given one by one, as the plugin that would register them."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items

    def _of(self, kind: type) -> list[Any]:
        return [item for item in self._items if isinstance(item, kind)]

    @hookimpl
    def quantdispatch_rules(self) -> list[Rule]:
        return self._of(Rule)

    @hookimpl
    def quantdispatch_kernels(self) -> list[Kernel]:
        return self._of(Kernel)

    @hookimpl
    def quantdispatch_backends(self) -> list[Backend]:
        return self._of(Backend)


def registry_with(*plugins: Any, strict: bool = True) -> Registry:
    """What is built in, and ``plugins``: modules, names of modules, objects with hooks, or single rules, kernels and
    backends. Nothing needs to be installed, and nothing that is installed takes part.

    ``strict``: raises ``PluginError`` where a plugin is broken, or a rule or kernel conflicts and would be disabled;
    otherwise the registry's ``problems`` say so, as for users.
    """
    loose = [p for p in plugins if isinstance(p, (Rule, Kernel, Backend))]
    whole = [p for p in plugins if not isinstance(p, (Rule, Kernel, Backend))]
    sources = [_source(plugin) for plugin in whole]
    if loose:
        sources.append(Source("given rules and kernels", UNDER_TEST, "0", lambda: _Loose(loose)))
    with warnings.catch_warnings():
        # what the warning says is raised below, or kept in the registry's problems
        warnings.simplefilter("ignore", RuntimeWarning)
        registry = build(sources)
    if strict and registry.problems:
        raise PluginError(
            "; ".join(map(str, registry.problems)), remedy="registry_with(strict=False) goes on without", code="QD910"
        )
    return registry


def rules_of(plugin: Any) -> list[Rule]:
    """The rules that a plugin (a module, its name, or an object with hooks) registers. Raises ``PluginError`` where it
    cannot be collected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        collected = collect(_source(plugin))
    if collected.status.state == "broken":
        raise PluginError(f"{collected.status.name}: {collected.status.error}", code="QD910")
    return collected.rules


def _source(plugin: Any) -> Source:
    if isinstance(plugin, str):
        return Source(plugin, UNDER_TEST, "0", lambda: importlib.import_module(plugin))
    name = getattr(plugin, "__name__", type(plugin).__name__)
    return Source(str(name), UNDER_TEST, "0", lambda: plugin)


@cache
def registry_of(plugins: tuple[str, ...] | None) -> Registry:
    """The registry that a table's ``plugins`` mean; ``None``: what is installed. Built once a process."""
    return get_registry() if plugins is None else registry_with(*plugins)


@contextmanager
def using_registry(registry: Registry) -> Iterator[Registry]:
    """What is planned and loaded inside sees this registry in place of the process's own. For tests: it holds for every
    thread. ``plan(registry=...)`` is enough for a single plan."""
    with standing_in(registry):
        yield registry
