"""Tensors of formats that plugins bring: which local names a checkpoint in such a format has is for its schemes to say.

compressed-tensors stores a weight as ``weight`` or ``weight_packed``, by which modules are found. Other software has
other names (``qweight``); they are read off the schemes of the config's own groups, and mean nothing in other files.
"""

from __future__ import annotations

from .config_groups import KNOWN_FORMATS
from .config_models import ConfigGroup, QuantConfig
from .facts import KINDS, LayerFacts
from .plugins import blamed
from .registry import Registry
from .rules.rule import Rule
from .scheme import LayerShape

#: what any layer may store, whatever its format
_COMMON = frozenset({"weight", "bias"})


def with_stored_names(config: QuantConfig, registry: Registry) -> QuantConfig:
    """``config`` with ``matrices`` and ``stored_names`` filled in. Raises ``PluginError`` for a plugin's scheme that
    cannot be imported or fails."""
    rules = [found for group in config.groups for found in _rules(group, config, registry)]
    if not rules:
        return config
    matrices: set[str] = set()
    names: set[str] = set()
    for rule, facts in rules:
        group = facts.weights.group_size if facts.weights is not None else None
        with blamed(rule):
            scheme = registry.scheme_class(rule)(facts, version=config.version)
            # presence and axes do not depend on the sizes: any will do that whole words and groups divide
            tensors = list(scheme.stored(LayerShape(256, 256 * max(group or 1, 1))))
        names.update(tensor.name for tensor in tensors)
        matrices.update(tensor.name for tensor in tensors if {"in", "out"} <= set(tensor.axes))
    return config.model_copy(
        update={"matrices": frozenset(matrices - _COMMON), "stored_names": frozenset(names - _COMMON)}
    )


def _rules(group: ConfigGroup, config: QuantConfig, registry: Registry) -> list[tuple[Rule, LayerFacts]]:
    """Those of the schemes that a group's layers may have, in a format that is not compressed-tensors' own."""
    name = config.effective_format(group)
    if name is None or name in KNOWN_FORMATS or name not in registry.formats:
        return []
    facts = [LayerFacts(kind, name, group.weights, group.inputs, group.outputs) for kind in KINDS]
    found = {rule.scheme: (rule, fact) for fact in facts if (rule := registry.resolve(fact).rule) is not None}
    return list(found.values())
