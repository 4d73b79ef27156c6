"""Which format and rule a layer that names no format gets, by any registry; the built-in formats come first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from ...registry.facts import LayerFacts
from ...registry.registry import Registry
from ...registry.rules import Rule
from ...registry.scheme import Scheme
from .layers import Layer
from .usual_layers import usual_layers
from .written import FORMATS

#: of compressed-tensors, whose packing the kit writes; where a width does not tell it from an older one, this does
WRITER = "0.20.0"
_FORMATS: tuple[str | None, ...] = (*sorted(FORMATS, reverse=True), None)


@cache
def resolved(registry: Registry, layer: Layer) -> tuple[Layer, Rule] | None:
    """The layer with its format, and its rule; ``None`` where no format has a rule for it."""
    formats = (layer.format,) if layer.format is not None else (*_FORMATS, *sorted(registry.formats - FORMATS))
    for name in formats:
        if name in ("naive-quantized",) and layer.format is None:
            continue  # another spelling of two others
        named = layer.with_(format=name)
        rule = registry.rules.winner(named.facts)
        if rule is not None:
            return named, rule
    return None


@cache
def usual_resolved(registry: Registry) -> tuple[tuple[Layer, Rule], ...]:
    """All usual layers that some rule takes."""
    # a plugin's own formats may hold what others hold too, and there its own kernels are asked for
    layers = (*usual_layers(sorted(registry.formats - FORMATS)), *usual_layers())
    found = (resolved(registry, layer) for layer in layers)
    return tuple(pair for pair in found if pair is not None)


def layers_of_rule(registry: Registry, rule: Rule, more: Sequence[Layer], fits: Callable[[Layer], bool]) -> list[Layer]:
    """Layers that ``rule`` takes: those of ``more`` first, then the usual ones that ``fits`` leaves."""
    given = [layer for layer in more if registry.rules.winner(layer.facts) is rule]
    return [*given, *(layer for layer in _usual_of_rule(registry, rule) if fits(layer))]


@cache
def _usual_of_rule(registry: Registry, rule: Rule) -> tuple[Layer, ...]:
    formats = {value for box in rule.predicate.boxes for value in _formats(box.domains)}
    usual = usual_layers(sorted(formats, key=str))
    return tuple(layer for layer in usual if registry.rules.winner(layer.facts) is rule)


def _formats(domains: object) -> Sequence[str | None]:
    wanted = domains.get("format") if isinstance(domains, dict) else None
    if wanted is None or wanted.allowed is None:
        return (None,)
    return [value for value in wanted.allowed if value is None or isinstance(value, str)]


def scheme_of(registry: Registry, rule: Rule, layer: Layer) -> Scheme:
    """The scheme that ``rule`` gives ``layer``. Raises ``PluginError`` where it cannot be imported."""
    facts: LayerFacts = layer.facts
    return registry.scheme_class(rule)(facts, version=WRITER)
