"""What engines make of a config that we refuse to read.

Engines validate each side's args and nothing else, so they take configs whose parts contradict each other. Where the
error is about args or a format, it says what they would run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from ..args import QuantArgs
from ..config_locate import all_quantization_configs
from ..config_models import ConfigGroup, QuantConfig
from ..environment import Environment
from ..errors import ConfigError
from ..facts import LayerFacts
from .compare import engines, judge
from .facts import View, sight_of

_SIDES = {"weights": "weights", "inputs": "input_activations", "outputs": "output_activations"}
_KINDS = {"linear": "", "moe": "for routed experts "}


def explain_refused(error: ConfigError, raw: Mapping[str, Any], environment: Environment | None = None) -> None:
    """Put into ``error.engines`` what each engine would run, where the error is about args or a format.

    ``raw``: what was to be read. Without an ``environment`` engines are judged by the newest devices that they know.
    """
    block, path = next(all_quantization_configs(raw), (None, ""))
    if block is None or error.field is None:
        return
    field = error.field.removeprefix(path).removeprefix(".")
    found: dict[str, dict[str, None]] = {}
    for config, group in _groups(block):
        if field != "format" and not _about(field, group.name):
            continue
        for kind, where in _KINDS.items():
            facts = LayerFacts(kind, config.effective_format(group), group.weights, group.inputs, group.outputs)
            view = View(facts, sight_of(config, group, group.targets[0] if group.targets else None))
            for engine in engines():
                device, arch = ("", "") if environment is None else (environment.device, environment.arch)
                opinion = judge(engine, view, device, arch)
                if opinion is not None:
                    found.setdefault(engine.name, {})[where + opinion.reason] = None
    labels = {engine.name: engine.label for engine in engines()}
    error.engines = {name: f"{labels[name]} {', and '.join(texts)}" for name, texts in found.items()}


def _about(field: str, group: str) -> bool:
    prefix = f"config_groups.{group}."
    return field.startswith(prefix) and field.removeprefix(prefix).split(".")[0] in {*_SIDES.values(), "format"}


def _groups(block: Mapping[str, Any]) -> Iterator[tuple[QuantConfig, ConfigGroup]]:
    """Each group that an engine could read, with the config round it."""
    raw_groups = block.get("config_groups")
    if not isinstance(raw_groups, Mapping):
        return
    groups = [g for name, raw in raw_groups.items() if (g := _group(str(name), raw)) is not None]
    form = block.get("format")
    config = QuantConfig(groups=tuple(groups), format=form if isinstance(form, str) else "fakequant")
    yield from ((config, group) for group in groups)


def _group(name: str, raw: Any) -> ConfigGroup | None:
    if not isinstance(raw, Mapping) or not isinstance(targets := raw.get("targets"), list):
        return None
    try:
        sides = {
            side: None if raw.get(key) is None else QuantArgs.model_validate(raw[key]) for side, key in _SIDES.items()
        }
        group = ConfigGroup(name=name, targets=tuple(map(str, targets)), format=raw.get("format"))
        return group.model_copy(update=sides)
    except (ValidationError, ValueError, TypeError, OverflowError, RecursionError):
        return None  # engines refuse these args too
