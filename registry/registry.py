"""The registry: every rule, kernel and plugin of this process, collected once and frozen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, cached_property
from typing import Any

from .. import __version__
from .bounded import Bounded
from .environment import Environment
from .errors import PluginError, QuantDispatchError
from .facts import KernelSpec, LayerFacts
from .kernel_ranks import arranged, why
from .kernels import BACKEND_RANKS, Kernel, Selection, ordered, select
from .lazy import load_target
from .plugins import OWN, Collected, PluginStatus, Source, collect, installed_plugins
from .rules import Rule, builtin_rules
from .scheme import Scheme, scheme_fault
from .settlement import DISABLING, RegistryProblem, settle
from .table import Decision, RuleCandidate, RuleTable

BUILTIN_KERNELS = (
    "quantdispatch.backends.cpu:kernels",
    "quantdispatch.backends.marlin:kernels",
    "quantdispatch.backends.torch_cuda:kernels",
    "quantdispatch.backends.triton:kernels",
    "quantdispatch.backends.reference:kernels",
)


class Registry:
    """Frozen rules and kernels. Build with :func:`build`; :func:`get_registry` holds the process's own."""

    def __init__(
        self,
        table: RuleTable,
        kernels: Iterable[Kernel],
        plugins: Iterable[Collected] = (),
        problems: Iterable[RegistryProblem] = (),
        ranks: Mapping[str, int] = BACKEND_RANKS,
    ) -> None:
        self.rules = table
        self.ranks = dict(ranks)
        self.kernels = tuple(ordered(kernels, self.ranks))
        self._collected = tuple(plugins)
        self.plugins: tuple[PluginStatus, ...] = tuple(p.status for p in self._collected)
        self.problems = tuple(problems)
        self._selected: dict[tuple[KernelSpec, Environment, str | None, bool], Selection] = Bounded(2048)
        self._schemes: dict[str, type[Scheme]] = {}

    @property
    def registered(self) -> tuple[Rule, ...]:
        """Every rule that anybody registered: those in the table, and those that a conflict has disabled."""
        foreign = [rule for plugin in self._collected for rule in plugin.rules]
        return (*self.rules.rules, *(r for r in foreign if not any(r is other for other in self.rules.rules)))

    def resolve(self, facts: LayerFacts) -> Decision:
        """The rule for one layer, with the trace of all rules."""
        return self.rules.resolve(facts)

    def nearest(self, facts: LayerFacts, n: int = 3) -> tuple[RuleCandidate, ...]:
        """The ``n`` rules that come closest to a layer that none accepts."""
        return self.rules.nearest(facts, n)

    def scheme_class(self, rule: Rule) -> type[Scheme]:
        """The scheme class of a rule, imported now. Raises ``PluginError`` when it is not one."""
        if rule.scheme not in self._schemes:
            scheme = load_target(rule.scheme)
            reason = scheme_fault(scheme)
            if reason is not None:
                raise PluginError(
                    f"rule {rule.name} of {rule.distribution} names {rule.scheme}, which is {reason}",
                    field="scheme",
                    observed=type(scheme).__name__,
                    required="a class with all that a Scheme has",
                    code="QD912",
                )
            self._schemes[rule.scheme] = scheme
        return self._schemes[rule.scheme]

    def select(
        self, spec: KernelSpec, environment: Environment, backend: str | None = None, probe: bool = False
    ) -> Selection:
        """The kernel for a task in an environment. ``backend`` forces one; ``probe`` lets kernels try themselves.

        Raises ``PluginError`` for a backend that nobody registers.
        """
        self.check_backend(backend)
        key = (spec, environment, backend, probe)
        if key not in self._selected:
            facts = environment.facts
            kernels = arranged(self.kernels, spec, facts, self.ranks)
            selection = select(spec, facts, kernels, backend=backend, probe=probe)
            ranked = why(selection.kernel, spec, facts, self.ranks)
            self._selected[key] = replace(selection, ranked=ranked) if ranked else selection
        return self._selected[key]

    def check_backend(self, backend: str | None) -> None:
        """Raises ``PluginError`` for a backend that nobody registers."""
        known = sorted({k.backend for k in self.kernels})
        if backend is not None and backend not in known:
            raise PluginError(
                f"unknown backend {backend!r}",
                field="backend",
                observed=backend,
                required=" | ".join(known),
                code="QD916",
            )

    @cached_property
    def formats(self) -> frozenset[str]:
        """Every format that a plugin's rule names."""
        foreign = [rule for rule in self.rules.rules if rule.distribution != OWN]
        named = [box.domains["format"] for rule in foreign for box in rule.predicate.boxes if "format" in box.domains]
        return frozenset(name for wanted in named for name in wanted.allowed or () if isinstance(name, str))

    def rewrite_config(self, config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
        """Let plugins translate a foreign ``quantization_config``: the block to use, and whose plugin did it.

        Raises the plugin's own ``ConfigError``, and ``PluginError`` for whatever else it raises.
        """
        for plugin in self._collected:
            try:
                rewritten = plugin.rewrite(config) if plugin.rewrite is not None else None
            except QuantDispatchError:
                raise
            except Exception as error:  # a stranger's code, on a stranger's file
                raise PluginError(
                    f"{plugin.status.distribution} fails to translate the config: {type(error).__name__}: {error}",
                    field="quantization_config", observed=f"{type(error).__name__}: {error}",
                    required="a config of compressed-tensors, or None",
                    remedy=f"report it to the authors of {plugin.status.distribution}",
                    code="QD915",
                ) from error  # fmt: skip
            if rewritten is not None:
                return rewritten, plugin.status.distribution
        return config, None


def build(sources: Iterable[Source] = ()) -> Registry:
    """Collect the built-in rules and kernels and every source, settle conflicts, freeze.

    A conflict between two plugins disables both rules; between a plugin and a built-in rule, the plugin's.
    """
    own = [replace(rule, distribution=OWN, version=__version__) for rule in builtin_rules()]
    kernels = [replace(k, distribution=OWN) for target in BUILTIN_KERNELS for k in load_target(target)()]
    collected = sorted((collect(s) for s in sources), key=lambda c: (c.status.distribution, c.status.name))
    rules, problems = settle(own, [rule for plugin in collected for rule in plugin.rules])
    kernels, clashes = _settle_kernels(kernels, [k for plugin in collected for k in plugin.kernels])
    problems += clashes
    problems += [
        RegistryProblem("broken-plugin", f"{c.status.name}: {c.status.error}", (c.status.distribution,), "plugin")
        for c in collected
        if c.status.state == "broken"
    ]
    conflicting = {d for p in problems if p.code in DISABLING for d in p.distributions} - {OWN}
    for plugin in collected:
        if plugin.status.state == "ok" and plugin.status.distribution in conflicting:
            mine = [p for p in problems if p.code in DISABLING and plugin.status.distribution in p.distributions]
            text = "; ".join(p.message for p in mine)
            plugin.status = replace(plugin.status, state="conflict", error=text)
    declared = {b.name: b.rank for plugin in collected for b in plugin.backends if b.name not in BACKEND_RANKS}
    # Built-in rules among themselves are checked by the tests and by `rules --check`; a process need not do it again.
    return Registry(RuleTable(rules), kernels, collected, problems, {**declared, **BACKEND_RANKS})


def _settle_kernels(own: list[Kernel], foreign: list[Kernel]) -> tuple[list[Kernel], list[RegistryProblem]]:
    """Kernels by unique name; a built-in name stays, two plugins' same name disables both."""
    problems = []
    own_names = {k.name for k in own}
    names = [k.name for k in foreign]
    kept = [k for k in foreign if k.name not in own_names and names.count(k.name) == 1]
    for name in sorted(set(names)):
        if name in own_names or names.count(name) > 1:
            dists = tuple(sorted({k.distribution for k in foreign if k.name == name}))
            text = f"kernel {name} of {', '.join(dists)} is disabled: the name is taken"
            problems.append(RegistryProblem("name-clash", text, dists, "kernel"))
    return own + kept, problems


def get_registry() -> Registry:
    """The registry of this process, with every installed plugin, or the one that stands in for it."""
    return _STAND_INS[-1] if _STAND_INS else _installed()


@contextmanager
def standing_in(registry: Registry) -> Iterator[Registry]:
    """Inside, ``registry`` is the process's own, for every thread; of several the one that was entered last."""
    _STAND_INS.append(registry)
    try:
        yield registry
    finally:
        _STAND_INS.remove(registry)


_STAND_INS: list[Registry] = []


@cache
def _installed() -> Registry:
    return build(installed_plugins())
