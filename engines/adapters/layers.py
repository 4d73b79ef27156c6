"""An engine asks layer by layer, by the names that its modules have at run time: what the config means for each.

Engines build their modules before they open the weights, so mostly the config alone decides here; where a plan of the
checkpoint is at hand, its stored tensors have the last word, as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from ...registry.config_models import QuantConfig
from ...registry.environment import Environment
from ...registry.errors import ConfigError
from ...registry.facts import LayerFacts
from ...registry.modules import EMBEDDING, LINEAR, Module
from ...registry.problem import Problem
from ...registry.registry import Registry, get_registry
from ...registry.resolution import Resolution
from ...registry.resolver import DENSE, Assignment, Resolver, Task
from ...registry.source import read_quantization
from ...registry.targets import TargetIndex
from ...registry.transforms import Transforms
from .fusion import member_names

#: the classes that compressed-tensors saw when it wrote the config, whatever the engine's own are called
CLASSES: Mapping[str, tuple[str, ...]] = {
    "linear": LINEAR,
    "moe": LINEAR,
    "lm_head": LINEAR,
    "embedding": EMBEDDING,
}


@dataclass(frozen=True)
class Members:
    """A run-time module, and what each layer of the checkpoint that it is made of resolves to, in order."""

    name: str
    layers: tuple[Resolution, ...]

    @property
    def quantized(self) -> bool:
        return any(layer.scheme != DENSE for layer in self.layers)

    @property
    def alike(self) -> bool:
        """Do all members compute and store the same way, so that one kernel can take them for one layer?"""
        return len({_contract(layer) for layer in self.layers}) == 1

    @property
    def first(self) -> Resolution:
        return self.layers[0]

    def check(self) -> None:
        """Raises the error of the first member that does not resolve."""
        for layer in self.layers:
            if layer.error is not None:
                raise layer.error

    def one(self) -> Resolution:
        """The first member, which speaks for all. Raises ``ConfigError`` naming the members where they differ, and the
        error of a member that does not resolve."""
        self.check()
        if self.alike:
            return self.first
        seen = [f"{layer.name} is {describe(layer)}" for layer in self.layers]
        raise ConfigError(
            f"is one module at run time, made of layers that are quantized differently: {'; '.join(seen)}",
            layer=self.name, field="config_groups", observed=[layer.name for layer in self.layers],
            required="the same args for all of them",
            remedy="quantize these layers alike, or ignore all of them",
            code="QD515",
        )  # fmt: skip


class LayerTable:
    """Resolves run-time modules of one checkpoint. Resolutions are those of :func:`quantdispatch.plan`.

    ``layers`` holds every checkpoint layer that was asked about, in the order of asking.
    """

    def __init__(
        self,
        raw: Mapping[str, Any],
        *,
        device: str = "cpu",
        dtype: str = "bfloat16",
        environment: Environment | None = None,
        registry: Registry | None = None,
        backend: str | None = None,
        fusions: Mapping[str, Sequence[str]] | None = None,
        stored: Mapping[str, Resolution] | None = None,
    ) -> None:
        """``raw``: a config.json, or a quantization block alone. ``fusions``: see :func:`.fusion.member_names`.
        ``stored``: layers that a plan of the checkpoint has resolved, by run-time name: they are taken as they are.

        Raises ``ConfigError`` for a config that cannot be read.
        """
        self.environment = environment or Environment.detect(device)
        self.registry = registry or get_registry()
        config, problems = read_quantization(raw, self.registry, self.environment)
        self.config: QuantConfig = config
        self.problems: list[Problem] = problems
        self.fusions: Mapping[str, Sequence[str]] = fusions or {}
        self.layers: dict[str, Resolution] = {}
        self.stored: Mapping[str, Resolution] = stored or {}
        self._index = TargetIndex([(group.name, group.targets) for group in config.groups], config.ignore)
        self._transforms = Transforms(config.transform_config, self._index.budget)
        self._groups = {group.name: group for group in config.groups}
        self._places: dict[Any, Assignment] = {}
        self._resolver = Resolver(Task(self.registry, self.environment, dtype, backend=backend), config, stored=False)

    def resolve(
        self, name: str, kind: str = "linear", classes: Sequence[str] = (), members: Iterable[str] | None = None
    ) -> Members:
        """``name``: of the run-time module. ``kind``: ``linear``, ``moe``, ``lm_head`` or ``embedding``. ``classes``:
        further class names that a target may mean, such as the engine's own. ``members``: names of its layers in the
        checkpoint where the fusions do not tell them. Failures stay in each resolution's ``error``."""
        names = member_names(name, self.fusions) if members is None else tuple(members)
        return Members(name, tuple(self.layer(member, kind, classes) for member in names))

    def layer(self, name: str, kind: str = "linear", classes: Sequence[str] = ()) -> Resolution:
        """One layer of the checkpoint."""
        known = self.layers.get(name)
        if known is None:
            known = self.layers[name] = self.stored.get(name) or self._resolve(name, kind, tuple(classes))
        return known

    def cache(self, name: str) -> Resolution | None:
        """The key and value cache of attention module ``name``, or ``None`` where the config does not quantize it."""
        if self.config.kv_cache_scheme is None:
            return None
        return self._resolver.cache(Module(name, "attention", ("Attention",), "attention, of the engine"))

    def experts(self, prefix: str, projections: Sequence[str], count: int) -> list[Members]:
        """``prefix.<e>.<projection>`` for every expert, one :class:`Members` a projection."""
        return [
            self.resolve(f"{prefix}.*.{last}", "moe", members=[f"{prefix}.{e}.{last}" for e in range(count)])
            for last in projections
        ]

    def _resolve(self, name: str, kind: str, classes: tuple[str, ...]) -> Resolution:
        seen = (*CLASSES[kind], *(c for c in classes if c not in CLASSES[kind]))
        ignored = self._index.ignored_by(name, seen)
        match = None if ignored is not None else self._index.match(name, seen)
        group = None if match is None else self._groups[match.group]
        online = self._transforms.online_many([name], [seen])[0]
        key = (match, ignored, online)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = Assignment(group, match and match.target, ignored, online)
        found = self._resolver.resolve(Module(name, kind, seen, f"{seen[0]}, of the engine"), place)
        return found if found.name == name else _named(found, name)


def facts_of(layer: Resolution) -> LayerFacts:
    """What the layer's scheme was made for."""
    return LayerFacts(layer.kind, layer.format, layer.weights, layer.inputs, layer.outputs)


def describe(layer: Resolution) -> str:
    """``"wNa16_int (int4 symmetric, group 64, pack-quantized)"``."""
    if layer.scheme == DENSE or layer.weights is None:
        return f"left dense (ignored by {layer.ignored_by!r})" if layer.ignored_by else "left dense"
    return f"{layer.scheme or 'unresolved'} ({layer.weights.describe()}, {layer.format})"


def _contract(layer: Resolution) -> tuple[Any, ...]:
    return (layer.scheme, layer.weights, layer.inputs, layer.outputs, layer.format, layer.transforms)


def _named(layer: Resolution, name: str) -> Resolution:
    """The same decision under another layer's name."""
    error = copy(layer.error)
    if error is not None:
        error.layer = name
    return replace(layer, name=name, error=error)
