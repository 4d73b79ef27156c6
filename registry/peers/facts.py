"""What an engine sees of a layer: its args, and where in the config they stand.

Engines read the file themselves, so some of what our own reading settles (a format's old name, a strategy left out, a
group without a format) is still open to them: it is kept here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..args import QuantArgs
from ..config_models import ConfigGroup, QuantConfig
from ..facts import SIDES, LayerFacts
from ..values import ABSENT

_CAPABILITY = re.compile(r"sm(\d{2,3})[af]?")
#: how the formats that have no name in a file are called where a file gives none
_NAMELESS = "fakequant"


@dataclass(frozen=True)
class Sight:
    """What engines look at besides a layer's kind and args.

    ``format``: the group's, or else the top-level one, as written; ``top_format``: the top-level one. ``target``: how
    the layer was found, ``"name"``, ``"regex"`` or ``"class"``. ``preset``: the group is spelled as a preset.
    ``unknown_args``: its args have keys that no release knows. ``sparse_targets``: a left-over ``sparsity_config`` has
    targets; ``sparse_24``: and speaks of 2:4. ``linear_entry``: is the group with the target ``Linear`` the layer's own
    (``"same"``, ``"other"``, ``"absent"``)? ``linear_mxfp4``: that group, or the one with ``FusedMoE``, is mxfp4.
    ``strategy_given``: a cache's strategy is written out. ``attention_group``: the group's one target ends in
    ``Attention``. ``online_transforms``: the layer has transforms at run time.
    """

    format: str | None = None
    top_format: str | None = None
    target: str = "class"
    preset: bool = False
    unknown_args: bool = False
    sparse_targets: bool = False
    sparse_24: bool = False
    linear_entry: str = "same"
    linear_mxfp4: bool = False
    strategy_given: bool = True
    attention_group: bool = False
    online_transforms: bool = False

    @classmethod
    def of(cls, facts: LayerFacts) -> Sight:
        """Where only the layer is known: its format is the only one, and one group has the target ``Linear``."""
        mxfp4 = facts.weights is not None and _is_mxfp4(facts.weights)
        return cls(facts.format, facts.format, linear_mxfp4=mxfp4)


@dataclass(frozen=True)
class View:
    """One layer as engines see it. ``stored``: how its tensors are stored, by our reading."""

    layer: LayerFacts
    sight: Sight
    flat: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        self.flat.update(_flat(self.layer, self.sight))

    def on(self, device: str, capability: Any, settings: Mapping[str, str]) -> dict[str, Any]:
        """All facts for one device and some settings of the engine. ``capability``: 90 for sm90, ``ABSENT`` if none."""
        return {**self.flat, "device": device, "capability": capability, **settings}


def sight_of(
    config: QuantConfig, group: ConfigGroup | None, target: str | None, *, name: str = "", online: bool = False
) -> Sight:
    """What engines see of a layer of ``group`` that was found by ``target``. ``online``: it has transforms to run."""
    cache = config.kv_cache_scheme
    top = None if config.format == _NAMELESS else config.format
    sparsity = config.sparsity_config or {}
    linear, experts = _entries(config.groups)
    where = "" if group is None else group.name
    return Sight(
        format=top if group is None else group.format or top,
        top_format=top,
        target=_how(target, name),
        preset=group is not None and group.preset is not None,
        unknown_args=_unknown_args(config.unknown_keys, where),
        sparse_targets=bool(sparsity.get("targets")),
        sparse_24=bool(sparsity.get("targets")) and sparsity.get("sparsity_structure") == "2:4",
        linear_entry="absent" if linear is None else "same" if group is None or _alike(linear, group) else "other",
        linear_mxfp4=any(g is not None and g.weights is not None and _is_mxfp4(g.weights) for g in (linear, experts)),
        strategy_given=cache is None or "strategy" in cache.model_fields_set,
        attention_group=group is not None and len(group.targets) == 1 and group.targets[0].endswith("Attention"),
        online_transforms=online,
    )


def capability_of(device: str, arch: str) -> Any:
    """``("cuda", "sm90")`` to 90, ``ABSENT`` where there is no such number."""
    match = _CAPABILITY.fullmatch(arch) if device == "cuda" else None
    return ABSENT if match is None else int(match.group(1))


def _flat(layer: LayerFacts, sight: Sight) -> dict[str, Any]:
    facts = dict(layer.flat)
    facts["stored"], facts["format"] = layer.format, sight.format
    block = layer.weights.block_structure if layer.weights is not None else None
    facts["block_rows"] = ABSENT if block is None else block[0]
    facts["unreadable_float"] = any(_unreadable(getattr(layer, side)) for side in SIDES)
    for name in ("top_format", "target", "preset", "unknown_args", "sparse_targets", "sparse_24", "linear_entry"):
        facts[name] = getattr(sight, name)
    for name in ("linear_mxfp4", "strategy_given", "attention_group", "online_transforms"):
        facts[name] = getattr(sight, name)
    return facts


def _unreadable(args: QuantArgs | None) -> bool:
    """compressed-tensors 0.17 and 0.18 infer no zero point's dtype for floats of other widths than 4 and 8 bits."""
    return (
        args is not None
        and args.type == "float"
        and args.num_bits not in (4, 8)
        and "zp_dtype" not in args.model_fields_set
    )


def _is_mxfp4(args: QuantArgs) -> bool:
    return (args.type, args.num_bits, args.strategy, args.group_size, args.symmetric) == ("float", 4, "group", 32, True)


def _alike(one: ConfigGroup, other: ConfigGroup) -> bool:
    return one.name == other.name or (one.weights, one.inputs, one.format) == (
        other.weights,
        other.inputs,
        other.format,
    )


#: the groups of the config that was asked about last, with what is in them: layers are asked about one by one
_last: tuple[tuple[ConfigGroup, ...], tuple[ConfigGroup | None, ConfigGroup | None]] = ((), (None, None))


def _entries(groups: tuple[ConfigGroup, ...]) -> tuple[ConfigGroup | None, ConfigGroup | None]:
    """The groups that the classes Linear and FusedMoE are in."""
    global _last
    known, found = _last
    if known is not groups:
        found = _entry(groups, "Linear"), _entry(groups, "FusedMoE")
        _last = (groups, found)
    return found


def _entry(groups: tuple[ConfigGroup, ...], target: str) -> ConfigGroup | None:
    """The last group with that target: it is the one that counts."""
    return next((group for group in reversed(groups) if target in group.targets), None)


def _unknown_args(unknown: Mapping[str, Any], group: str) -> bool:
    sides = ("weights.", "input_activations.", "output_activations.")
    return any(f"config_groups.{group}.{side}" in path for path in unknown for side in sides)


def _how(target: str | None, name: str) -> str:
    if target is None:
        return "class"
    if target.startswith("re:"):
        return "regex"
    return "name" if target == name or "." in target or not target[:1].isupper() else "class"
