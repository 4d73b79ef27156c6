"""The whole checkpoint resolved: for each layer its rule, scheme and kernel, and the reasons."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .allowances import allowances
from .assign import add_missing_head, assign, without_tied_head
from .checkpoint import Checkpoint, collector_paused
from .choices import find_choices
from .config_models import QuantConfig
from .environment import Environment
from .errors import ConfigError, PlanError, QuantDispatchError
from .families import Family, Modules, find_modules, without_tensors
from .layers import Layers
from .modules import Module, given_modules
from .problem import Problem
from .registry import Registry, get_registry
from .representatives import CACHE, Survey, overlaps, representatives
from .resolution import Resolution
from .resolver import Assignment, Resolver, Task
from .scope import Scope
from .sharding import check_degree
from .source import Source, open_source, read_quantization
from .targets import TargetIndex
from .transformed import Transformed
from .transforms import FIELD, Transforms

DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class LayerGroup:
    """Layers that a reader would put on one line; ``first`` speaks for all of them."""

    first: Resolution
    names: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """``layers``: by module name, in natural order; those of a config alone by their groups. ``source``: as given.
    ``architecture`` and ``model_type``: ``None`` where the config does not say. ``format``, ``version``: the config's
    own. ``checkpoint``: its headers, or ``None`` where there were only patterns. ``config``: the quantization config.
    ``raw``: the whole config.json."""

    layers: Mapping[str, Resolution]
    problems: tuple[Problem, ...]
    source: str
    config: QuantConfig
    environment: Environment
    device: str = "cpu"
    dtype: str = "bfloat16"
    tensor_parallel: int = 1
    checkpoint: Checkpoint | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def architecture(self) -> str | None:
        """First of the config's ``architectures``: ``LlamaForCausalLM``."""
        names = self.raw.get("architectures")
        return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None

    @property
    def model_type(self) -> str | None:
        """The config's ``model_type``: ``llama``."""
        name = self.raw.get("model_type")
        return name if isinstance(name, str) else None

    @property
    def format(self) -> str | None:
        """Compression format at the top of the config; a group's own beats it."""
        return self.config.format

    @property
    def version(self) -> str | None:
        """Version of compressed-tensors that wrote the config, where it says so."""
        return self.config.version

    @cached_property
    def errors(self) -> tuple[QuantDispatchError, ...]:
        """Every layer's failure, in the order of the layers."""
        return tuple(layer.error for layer in self.failing if layer.error is not None)

    @property
    def failing(self) -> Iterable[Resolution]:
        """The layers with an error. The others are not looked at one by one: they are many."""
        return _failing(self.layers)

    @cached_property
    def summary(self) -> tuple[LayerGroup, ...]:
        """The layers gathered into groups, in the order in which each first appears."""
        groups: dict[Any, list[str]] = {}
        for likeness, name in _alike(self.layers):
            groups.setdefault(likeness, []).append(name)
        return tuple(LayerGroup(self.layers[names[0]], tuple(names)) for names in groups.values())

    def to_json(self) -> dict[str, Any]:
        """The contract of ``explain --json``: one entry a layer, never collapsed, in a stable order."""
        return {
            "version": 1,
            "source": self.source,
            "architecture": self.architecture,
            "model_type": self.model_type,
            "format": self.format,
            "written_by": self.version,
            "device": self.device,
            "dtype": self.dtype,
            "tensor_parallel": self.tensor_parallel,
            "environment": self.environment.to_json(),
            "layers": [layer.to_json() for layer in self.layers.values()],
            "problems": [problem.to_json() for problem in self.problems],
        }


def plan(
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    device: str = "cpu",
    dtype: Any = "bfloat16",
    tensor_parallel: int = 1,
    modules: Mapping[str, str | Sequence[str]] | None = None,
    environment: Mapping[str, Any] | Environment | None = None,
    strict: bool = True,
    backend: str | None = None,
    allow: str | Iterable[str] = (),
    choices: str | os.PathLike[str] | bool | None = None,
    registry: Registry | None = None,
) -> Plan:
    """Resolve every layer of a checkpoint, reading its config and headers only.

    ``source``: checkpoint folder, config.json, hub id (``owner/name`` or ``owner/name@revision``), or a dict.
    ``device``: ``cpu``, ``cuda``, ``cuda:sm90``, ``rocm:gfx942``. ``dtype``: of the activations, a name or a torch one.
    ``tensor_parallel``: ranks; kernels are chosen for one rank's part. ``modules``: names to class names (or MROs),
    where there are no tensors or they tell the wrong class. ``environment``: versions and facts to assume instead of
    what is installed. ``backend``: consider only its kernels. ``allow``: what kernels may compute otherwise than
    schemes say, ``"int8-activations"``; the plan lists it as a deviation. ``choices``: a file of measured kernels to go
    by, else ``$QUANTDISPATCH_CHOICES`` or the one in the checkpoint's folder; ``False`` for none.
    ``registry``: to go by in place of what is installed, for tests of plugins: see
    :func:`quantdispatch.testing.registry_with`.

    Raises ``ConfigError`` and ``UnreadableCheckpointError`` for what cannot be read. ``strict``: raises ``PlanError``
    with every layer's failure in ``errors``; otherwise they stay in the plan.
    """
    dtype, degree, allowed = _dtype_name(dtype), check_degree(tensor_parallel), allowances(allow)
    if not isinstance(environment, Environment):
        environment = Environment.detect(device, environment)
    registry = registry or get_registry()
    registry.check_backend(backend)
    with collector_paused():
        opened = open_source(source)
        config, problems = read_quantization(opened.raw, registry, environment)
        measured = find_choices(choices, opened.label if os.path.isdir(opened.label) else None)
        unused = measured.problem(environment) if measured is not None else None
        task = Task(registry, environment, dtype, degree, backend, allowed, None if unused else measured)
        layers, found = _layers(opened, config, task, modules)
        found += [unused] if unused is not None else []
    result = Plan(
        layers, (*problems, *found, *_registry_problems(registry)), opened.label, config, environment, device, dtype,
        degree, opened.checkpoint, opened.raw,
    )  # fmt: skip
    if strict and result.errors:
        raise PlanError(_headline(result), errors=result.errors)
    return result


def _layers(
    source: Source, config: QuantConfig, task: Task, given: Mapping[str, str | Sequence[str]] | None
) -> tuple[Mapping[str, Resolution], list[Problem]]:
    index = TargetIndex([(group.name, group.targets) for group in config.groups], config.ignore)
    transforms = Transforms(config.transform_config, index.budget)
    problems = [
        Problem("transform-offline", f"{t}: applied when it was written", "note", FIELD) for t in transforms.offline
    ]
    checkpoint = source.checkpoint
    transformed = Transformed(transforms)
    resolver = Resolver(task, config, stored=checkpoint is not None, transformed=transformed)
    layers: Mapping[str, Resolution]
    if checkpoint is not None:
        problems += [Problem("files", note, "note", checkpoint.path) for note in checkpoint.notes]
        modules = find_modules(checkpoint.tensors, checkpoint.config, config.matrices)
        problems += [
            Problem("unknown-module", f"modules names {name}, which the checkpoint does not have", where=name)
            for name in modules.override(given or {})
        ]
        if transforms:
            transforms.scope = Scope(config.path, modules.families)
            transformed.adopt(modules)
        add_missing_head(modules, index)
    elif given:
        modules = without_tensors(given_modules(given).values())
    else:
        problems.append(
            Problem("no-tensors", "no tensors to look at: layers stand for patterns, shapes are unknown", "note")
        )
        survey = Survey(index, [target for group in config.groups for target in group.targets])
        layers = _from_patterns(config, source, index, survey, transforms, resolver)
        return layers, problems + overlaps(config, survey)
    elsewhere = transformed.elsewhere(modules, source.raw) if transforms else {}
    layers, found = _from_modules(modules, config, index, transforms, resolver, elsewhere)
    problems += without_tied_head(found, modules, source.raw)
    return layers, problems


def _from_modules(
    modules: Modules,
    config: QuantConfig,
    index: TargetIndex,
    transforms: Transforms,
    resolver: Resolver,
    elsewhere: Mapping[str, tuple[str, ...]],
) -> tuple[Layers, list[Problem]]:
    """``elsewhere``: transforms of what is no layer, see :meth:`.transformed.Transformed.elsewhere`."""
    assigned = assign(modules, config, index, transforms)
    assigned.assignments.update((name, Assignment(transforms=labels)) for name, labels in elsewhere.items())
    if config.kv_cache_scheme is not None:
        _adopt_cache_scales(modules, assigned.assignments)
    models: dict[str, Resolution] = {}
    nowhere = Assignment()
    place_of = assigned.assignments.get
    known: dict[tuple[Family, Assignment], Resolution] = {}  # asked here for speed: layers are many
    for name, family in modules.families.items():
        assignment = place_of(name)
        if assignment is not None:
            model = known.get((family, assignment))
            models[name] = model or resolver.resolve_family(modules, name, family, assignment)
            if model is None and resolver.by_family(name, assignment):
                known[family, assignment] = models[name]
        elif family.kind == "attention" and config.kv_cache_scheme is not None:
            models[name] = resolver.cache(modules.module(name), modules.tensors(name))
        elif family.tensors or family.kind is None:
            # Not a layer, but its tensors need an owner all the same, and a module that was asked about an answer.
            rest = resolver.resolve_family(modules, name, family, nowhere)
            if rest.error is not None or not family.tensors:
                models[name] = rest
    problems = [
        Problem(
            "format-inferred",
            f"names no format: taken for {' and '.join(sorted(formats))} from its tensors",
            "note",
            f"config_groups.{group}",
        )
        for group, formats in resolver.inferred_formats.items()
    ]
    return Layers(models), assigned.problems + problems


def _from_patterns(
    config: QuantConfig, source: Source, index: TargetIndex, survey: Survey, transforms: Transforms, resolver: Resolver
) -> Layers:
    models = {}
    for module, place in representatives(config, source.raw, index, survey):
        # A pattern's own layers are unknown, so every transform may concern it.
        online = transforms.labels if place.group is not None else ()
        models[module.name] = resolver.resolve(module, Assignment(place.group, place.target, place.ignored_by, online))
    if config.kv_cache_scheme is not None:
        models[CACHE] = resolver.cache(Module(CACHE, "attention", ("Attention",), "attention, from kv_cache_scheme"))
    return Layers(models)


def _adopt_cache_scales(modules: Modules, assignments: Mapping[str, Assignment]) -> None:
    """Old writers stored the cache's scales as output scales of the projections that fill it."""
    families = modules.families
    for name, family in list(families.items()):
        parent, _, last = name.rpartition(".")
        if last not in ("k_proj", "v_proj", "qkv_proj") or parent not in families:
            continue
        owner, place = families[parent], assignments.get(name)
        if owner.kind != "attention":
            continue
        if place is not None and place.group is not None and place.group.outputs is not None:
            continue
        scales = {
            local: kind for local, kind in family.tensors.items() if local in ("output_scale", "output_zero_point")
        }
        if scales:
            modules.change(parent, tensors={**owner.tensors, **{f"{last}.{local}": scales[local] for local in scales}})
            modules.change(name, tensors={local: k for local, k in family.tensors.items() if local not in scales})


def _failing(layers: Mapping[str, Resolution]) -> Iterable[Resolution]:
    if isinstance(layers, Layers):
        return layers.failing()
    return (layer for layer in layers.values() if layer.error is not None)


def _alike(layers: Mapping[str, Resolution]) -> Iterable[tuple[Any, str]]:
    if isinstance(layers, Layers):
        return layers.alike()
    return ((layer.likeness, layer.name) for layer in layers.values())


def _registry_problems(registry: Registry) -> Iterable[Problem]:
    for problem in registry.problems:
        yield Problem(problem.code, problem.message, "warning", ", ".join(problem.distributions))


def _headline(result: Plan) -> str:
    """One line: how many layers fail, the first failure, and how many fail alike."""
    kinds: dict[Any, list[str]] = {}
    for likeness, name in _alike(result.layers):
        if likeness[-1] is not None:
            kinds.setdefault(likeness[-1], []).append(name)
    total = len(result.errors)
    alike = list(kinds.values())
    first = result.layers[alike[0][0]]
    head = f"{total} of {len(result.layers)} layers {'do' if total != 1 else 'does'} not resolve: {first.error}"
    rest = [f"{len(alike[0]) - 1} more layers fail alike"] if len(alike[0]) > 1 else []
    rest += [f"{len(alike) - 1} other kinds of failure"] if len(alike) > 1 else []
    return f"{head} ({', '.join(rest)})" if rest else head


def _dtype_name(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ConfigError(
            "unknown dtype of activations", field="dtype", observed=name, required=" | ".join(DTYPES), code="QD526"
        )
    return name


__all__ = ["LayerGroup", "Plan", "Problem", "Resolution", "plan"]
