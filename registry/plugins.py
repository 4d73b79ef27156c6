"""Collecting plugins: lazily, transactionally, and each for itself.

A plugin that cannot be imported, was made for another interface, or registers something invalid is recorded, warned
about once, and changes nothing else. With ``QUANTDISPATCH_STRICT=1`` it raises instead.
"""

from __future__ import annotations

import importlib.metadata
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pluggy

from . import hookspecs
from .errors import PluginError, QuantDispatchError
from .kernels import Backend, Kernel
from .rules.rule import Rule

ENTRY_POINTS = "quantdispatch"
#: the distribution of what is built in
OWN = "quantdispatch"
T = TypeVar("T")


@dataclass(frozen=True)
class PluginStatus:
    """One plugin as ``doctor`` shows it. ``state``: ``ok``, ``broken`` (registers nothing) or ``conflict`` (some
    rules disabled); ``error`` says why."""

    name: str
    distribution: str
    version: str
    state: str = "ok"
    error: str | None = None
    rules: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "rules": list(self.rules), "kernels": list(self.kernels)}


@dataclass
class Collected:
    """Everything one plugin registers, validated, with its origin filled in."""

    status: PluginStatus
    rules: list[Rule] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    backends: list[Backend] = field(default_factory=list)
    rewrite: Callable[[Mapping[str, Any]], Mapping[str, Any] | None] | None = None


@dataclass(frozen=True)
class Source:
    """Where a plugin comes from: a way to get the module, and the names to show."""

    name: str
    distribution: str
    version: str
    load: Callable[[], Any]


def installed_plugins() -> list[Source]:
    """Entry points of every installed distribution, by name; none is imported yet."""
    points = importlib.metadata.entry_points(group=ENTRY_POINTS)
    sources = [Source(point.name, *_name_and_version(point.dist), point.load) for point in points]
    return sorted(sources, key=lambda s: (s.distribution, s.name))


def _name_and_version(dist: importlib.metadata.Distribution | None) -> tuple[str, str]:
    """Of a distribution. Its ``name`` and ``version`` parse the whole description as an e-mail, each anew: of fifty
    plugins that takes longer than collecting them."""
    if dist is None:
        return "unknown", "unknown"
    found: dict[str, str] = {}
    for line in (dist.read_text("METADATA") or "").splitlines():
        if not line.strip():
            break
        key, _, value = line.partition(":")
        found.setdefault(key.strip().lower(), value.strip())
    if "name" in found and "version" in found:
        return found["name"], found["version"]
    return dist.name, dist.version


def collect(source: Source) -> Collected:
    """Import one plugin and take all it registers, or nothing of it. Never raises, unless strict."""
    status = PluginStatus(source.name, source.distribution, source.version)
    try:
        return _collect(source, status)
    except (Exception, SystemExit) as error:  # whatever a stranger's module raises must not touch anyone else
        reason = str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
        reason = " ".join(reason.split())
        if os.environ.get("QUANTDISPATCH_STRICT") == "1":
            given = error if isinstance(error, PluginError) else None
            raise PluginError(
                f"plugin {source.name} of {source.distribution} {source.version}: {reason}",
                field=(given.field if given else None) or source.name,
                observed=given.observed if given else reason,
                required=given.required if given else "a module that can be imported",
                remedy=f"fix it, or uninstall {source.distribution}",
                code=given.code if given else "QD911",
            ) from error
        warnings.warn(
            f"quantdispatch plugin {source.name} ({source.distribution} {source.version}) is left out: {reason}",
            RuntimeWarning,
            stacklevel=2,
        )
        return Collected(replace(status, state="broken", error=reason))


def _collect(source: Source, status: PluginStatus) -> Collected:
    module = source.load()
    api = getattr(module, "QUANTDISPATCH_API", hookspecs.API_VERSION)
    if api != hookspecs.API_VERSION:
        raise PluginError(
            f"made for plugin interface {api!r}, this is {hookspecs.API_VERSION}",
            field="QUANTDISPATCH_API",
            observed=api,
            required=hookspecs.API_VERSION,
            remedy="install a matching release of either",
            code="QD913",
        )
    manager = _manager()
    manager.register(module, source.name)
    try:
        return _registered(manager, module, source, status)
    finally:
        manager.unregister(module)


class _Managers(threading.local):
    shared: pluggy.PluginManager | None = None


_managers = _Managers()


def _manager() -> pluggy.PluginManager:
    """One that knows the hooks and has no plugin. Reading the specifications costs more than collecting a plugin, so
    all plugins pass through the same, one after the other."""
    if _managers.shared is None:
        _managers.shared = _new_manager()
    return _managers.shared


def _new_manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def _registered(manager: pluggy.PluginManager, module: Any, source: Source, status: PluginStatus) -> Collected:
    manager.check_pending()  # a hookimpl that no spec knows is a typing mistake, not an extension
    hook = manager.hook
    origin = {"distribution": source.distribution}
    found = Collected(status)
    found.rules = [
        replace(rule, version=source.version, **origin) for rule in _items(hook.quantdispatch_rules(), Rule, "rule")
    ]
    found.kernels = [replace(k, **origin) for k in _items(hook.quantdispatch_kernels(), Kernel, "kernel")]
    found.backends = _items(hook.quantdispatch_backends(), Backend, "backend")
    if hook.quantdispatch_config.get_hookimpls():
        own = _new_manager()
        own.register(module, source.name)
        found.rewrite = lambda config: next(
            (r for r in own.hook.quantdispatch_config(config=config) if r is not None), None
        )
    _check_names([r.name for r in found.rules], "rule")
    _check_names([k.name for k in found.kernels], "kernel")
    found.status = replace(
        status, rules=tuple(r.name for r in found.rules), kernels=tuple(k.name for k in found.kernels)
    )
    return found


@contextmanager
def blamed(rule: Rule, layer: str | None = None) -> Iterator[None]:
    """Whatever the scheme of a plugin's rule raises that is no error of ours, as a ``PluginError`` that names both, and
    every ``PluginError`` with the layer."""
    try:
        yield
    except QuantDispatchError as error:
        if isinstance(error, PluginError) and error.layer is None:
            error.layer = layer
        raise
    except (Exception, SystemExit) as error:
        if rule.distribution == OWN:
            raise
        raise PluginError(
            f"the scheme {rule.scheme} of rule {rule.name} fails: {type(error).__name__}: {error}", layer=layer,
            field=rule.scheme, observed=f"{type(error).__name__}: {error}", required="a CheckpointError, or an answer",
            remedy=f"report it to the authors of {rule.distribution}", code="QD915",
        ) from error  # fmt: skip


def _items(results: list[Iterable[T]], kind: type[T], what: str) -> list[T]:
    items = [item for result in results if result is not None for item in result]
    for item in items:
        if not isinstance(item, kind):
            raise PluginError(
                f"registers {item!r} as a {what}", field=f"quantdispatch_{what}s", observed=type(item).__name__,
                required=kind.__name__, code="QD912",
            )  # fmt: skip
    return items


def _check_names(names: list[str], what: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise PluginError(
            f"registers the {what} {', '.join(twice)} twice", field=f"quantdispatch_{what}s",
            observed=", ".join(twice), required="a name for each", code="QD912",
        )  # fmt: skip
