"""Tensors of formats that plugins bring: which local names a checkpoint in such a format has is for its schemes to say.

compressed-tensors stores a weight as ``weight`` or ``weight_packed``, by which modules are found. Other software has
other names (``qweight``); they are read off the schemes of the config's own groups, and mean nothing in other files.
"""

from __future__ import annotations

from .config_groups import KNOWN_FORMATS
from .config_models import ConfigGroup, QuantConfig
from .facts import KINDS, LayerFacts
from .registry import Registry
from .scheme import LayerShape, Scheme

#: what any layer may store, whatever its format
_COMMON = frozenset({"weight", "bias"})


def with_stored_names(config: QuantConfig, registry: Registry) -> QuantConfig:
    """``config`` with ``matrices`` and ``stored_names`` filled in. Raises ``PluginError`` for a plugin's scheme that
    cannot be imported."""
    schemes = [scheme for group in config.groups for scheme in _schemes(group, config, registry)]
    if not schemes:
        return config
    matrices, names = set(), set()
    for scheme in schemes:
        group = scheme.layer.weights.group_size if scheme.layer.weights is not None else None
        # presence and axes do not depend on the sizes: any will do that whole words and groups divide
        for tensor in scheme.stored(LayerShape(256, 256 * max(group or 1, 1))):
            names.add(tensor.name)
            if {"in", "out"} <= set(tensor.axes):
                matrices.add(tensor.name)
    return config.model_copy(
        update={"matrices": frozenset(matrices - _COMMON), "stored_names": frozenset(names - _COMMON)}
    )


def _schemes(group: ConfigGroup, config: QuantConfig, registry: Registry) -> list[Scheme]:
    """Those that a group's layers may have, in a format that is not compressed-tensors' own."""
    name = config.effective_format(group)
    if name is None or name in KNOWN_FORMATS or name not in registry.formats:
        return []
    facts = [LayerFacts(kind, name, group.weights, group.inputs, group.outputs) for kind in KINDS]
    found = {rule.scheme: (rule, fact) for fact in facts if (rule := registry.resolve(fact).rule) is not None}
    return [registry.scheme_class(rule)(fact, version=config.version) for rule, fact in found.values()]
