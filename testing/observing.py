"""What really comes of a row: the layer's resolution, or the error in place of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..registry.config import parse_config
from ..registry.config_json import parse_json_file
from ..registry.environment import Environment
from ..registry.errors import QuantDispatchError
from ..registry.facts import SIDES
from ..registry.modules import Module, given_modules, named_kind
from ..registry.plan import Plan, plan
from ..registry.presets import PRESETS
from ..registry.registry import Registry
from ..registry.resolution import Resolution
from ..registry.resolver import Assignment, Resolver, Task
from .rows import Row, TableError
from .stored import layer_tensors, write_checkpoint

#: a name that a layer of each kind has in a checkpoint, and its class
STAND_INS = {
    "linear": ("model.layers.0.mlp.down_proj", "Linear"),
    "moe": ("model.layers.0.mlp.experts.0.down_proj", "Linear"),
    "lm_head": ("lm_head", "Linear"),
    "embedding": ("model.embed_tokens", "Embedding"),
    "attention": ("model.layers.0.self_attn", "LlamaAttention"),
    "kv_cache": ("model.layers.0.self_attn", "LlamaAttention"),
}
_CONFIG_KEYS = {"weights": "weights", "inputs": "input_activations", "outputs": "output_activations"}


@dataclass(frozen=True)
class Observation:
    """``layer``: ``None`` where there is no plan. ``error``: the layer's, or that of the whole plan. ``problems``: the
    codes of the plan's, without notes; ``None`` for a row that asks by facts."""

    layer: Resolution | None
    error: QuantDispatchError | None
    problems: tuple[str, ...] | None = None

    @cached_property
    def values(self) -> Mapping[str, Any]:
        """Every field that a row can expect something of; ``""`` where there is none."""
        layer, error = self.layer or Resolution("", ""), self.error
        nearest = getattr(error, "nearest", ())
        return {
            "rule": layer.rule.name if layer.rule is not None else "",
            "scheme": layer.scheme or "",
            "kernel": layer.kernel or "",
            "backend": layer.backend or "",
            "error": "" if error is None else type(error).__name__,
            "message": "" if error is None else str(error),
            "near": [(c.rule if hasattr(c, "rule") else c.kernel).name for c in nearest],
            "deviations": list(layer.deviations),
            "conditions": list(layer.conditions),
            "equivalents": {engine: list(names) for engine, names in layer.equivalents.items()},
            "differs": dict(layer.differs),
            "engines": dict(getattr(error, "engines", None) or {}),
            "group": layer.group or "",
            "target": layer.target or "",
            "ignored_by": layer.ignored_by or "",
            "kind": layer.kind,
            "format": layer.format or "",
            "problems": list(self.problems or ()),
        }


@dataclass(frozen=True)
class Place:
    """Where a row's layer runs."""

    device: str = "cpu"
    dtype: str = "bfloat16"
    tensor_parallel: int = 1
    force_backend: str | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, row: Row) -> Place:
        return cls(**{name: row.asks[name] for name in cls.__dataclass_fields__ if name in row.asks})

    def detect(self) -> Environment:
        """Raises ``ConfigError`` for a device or fact that is not known."""
        # TOML has no null: a package that is not installed is false, where a flag of the processor is really that
        facts = {k: None if v is False and not k.startswith("isa.") else v for k, v in self.environment.items()}
        return Environment.detect(self.device, facts)


def observe(row: Row, registry: Registry) -> list[Observation]:
    """One observation for each layer that the row speaks of; never empty.

    Raises ``TableError`` where the row speaks of a file or a layer that is not there: what it expects can mean nothing.
    """
    try:
        if row.form == "layer":
            return [_observe_layer(row, registry)]
        return _observe_plan(row, registry)
    except TableError:
        raise
    except QuantDispatchError as error:
        return [Observation(None, error)]
    except Exception as error:  # a fault of ours or of a plugin's: say which question brought it out
        error.add_note(f"{row.place}asking {', '.join(f'{key} {value}' for key, value in row.asks.items())}")
        raise


# ------------------------------------------------------------------------------------------------- a layer by its facts


def layer_config(row: Row) -> dict[str, Any]:
    """The config that says what the row's facts say, with one group and one target."""
    asks = row.asks
    block: dict[str, Any] = {"quant_method": "compressed-tensors", "config_groups": {}}
    block |= {key: asks[key] for key in ("format", "version") if key in asks}
    sides = given_sides(row)
    if asks.get("kind") == "kv_cache":
        block["kv_cache_scheme"] = sides.get("inputs", {})
    else:
        group = {_CONFIG_KEYS[side]: args for side, args in sides.items()}
        block["config_groups"]["row"] = {"targets": ["Linear"], **group}
    return block


def given_sides(row: Row) -> dict[str, dict[str, Any]]:
    """The quant args of a row that asks by facts: those of its preset, and what it says beside it."""
    scheme = PRESETS[row.asks["preset"].upper()] if "preset" in row.asks else {}
    sides: dict[str, dict[str, Any]] = {}
    for side in SIDES:
        if _CONFIG_KEYS[side] in scheme or side in row.asks:
            sides[side] = {**scheme.get(_CONFIG_KEYS[side], {}), **row.asks.get(side, {})}
    return sides


def _observe_layer(row: Row, registry: Registry) -> Observation:
    place, kind = Place.of(row), row.asks.get("kind", "linear")
    registry.check_backend(place.force_backend)
    task = Task(registry, place.detect(), place.dtype, place.tensor_parallel, place.force_backend)
    config = parse_config(layer_config(row))
    name, class_ = STAND_INS[kind]
    module = Module(row.asks.get("layer", name), kind, (class_,), "as the row says")
    if kind == "kv_cache":
        layer = Resolver(task, config, stored=False).cache(Module(module.name, "attention", module.classes))
    else:
        assignment = Assignment(config.groups[0], "Linear")
        layer = Resolver(task, config, stored=False).resolve(module, assignment)
        if "shape" in row.asks and layer.scheme_object is not None:
            module.tensors = layer_tensors(layer.scheme_object, *row.asks["shape"])
            layer = Resolver(task, config, stored=True).resolve(module, assignment)
    return Observation(layer, layer.error)


# ------------------------------------------------------------------------------------------------- a layer of a plan


def _observe_plan(row: Row, registry: Registry) -> list[Observation]:
    with ExitStack() as stack:
        found = _plan(row, registry, stack)
    problems = tuple(problem.code for problem in found.problems if problem.severity != "note")
    name = row.asks.get("layer")
    if name is None:
        layers = [layer for layer in found.layers.values() if layer.group is not None]
        if not layers:
            raise TableError(f"{row.place}the config quantizes no layer, so the row says nothing", field="layer")
    elif name in found.layers:
        layers = [found.layers[name]]
    else:
        names = ", ".join(list(found.layers)[:5]) or "none"
        raise TableError(f"{row.place}the plan has no layer {name}; it has {names}", field="layer")
    return [Observation(layer, layer.error, problems) for layer in layers]


def _plan(row: Row, registry: Registry, stack: ExitStack) -> Plan:
    place, asks = Place.of(row), row.asks
    modules = dict(asks.get("modules", {}))
    name = asks.get("layer", "")
    if row.form == "checkpoint":
        source: Any = _file(row, "checkpoint")
    else:
        source = config_of(row)
        if "tensors" in asks:
            source = write_checkpoint(Path(stack.enter_context(TemporaryDirectory())), source, asks["tensors"])
        elif not modules and is_module_name(name):
            modules = {name: named_kind(name)[1]}
    given_modules(modules)
    return plan(
        source,
        device=place.device,
        dtype=place.dtype,
        tensor_parallel=place.tensor_parallel,
        modules=modules or None,
        environment=place.detect(),
        backend=place.force_backend,
        strict=False,
        registry=registry,
    )


def is_module_name(name: str) -> bool:
    """Is it one module's name, and not a pattern or a class that stands for modules?"""
    return bool(name) and not name.startswith("re:") and not name[0].isupper() and "[" not in name


def config_of(row: Row) -> Any:
    """The config of a row that asks by one, read when it stands in a file. Raises ``ConfigError``."""
    config = row.asks["config"]
    return parse_json_file(_file(row, "config")) if isinstance(config, str) else config


def _file(row: Row, key: str) -> Path:
    path = row.origin.folder / str(row.asks[key])
    if not path.exists():
        raise TableError(f"{row.place}there is no file or folder {path}", field=key)
    return path
