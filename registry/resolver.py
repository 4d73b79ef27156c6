"""One layer from its place in the config to rule, scheme and kernel.

Layers are many and kinds of layers few: a layer with the same assignment and the same headers as an earlier one takes
over what was decided for that one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import arbitration, peers
from .choices import Choices
from .config_models import ConfigGroup, QuantConfig
from .environment import Environment
from .errors import ConfigError, NoKernelFound, NoSchemeFound, QuantDispatchError
from .facts import SIDES, LayerFacts
from .families import Family, Modules
from .kernels import refusal
from .known_plugins import known_plugin
from .modules import CACHE_NAMES, Module, quantized_names
from .peers.facts import Sight, sight_of
from .plugins import blamed
from .registry import Registry
from .resolution import Resolution, Trace
from .rules.rule import Rule
from .scheme import LayerShape, Scheme, TensorInfo
from .sharding import shard
from .stored_tensors import TensorEntry
from .table import Decision
from .transformed import Transformed
from .transforms import Transform, Transforms

DENSE = "dense"
#: unquantized layers stay modules of torch: no kernel of ours computes them
TORCH = "torch"
#: formats that do not say how tensors are stored
_OPEN_FORMATS = frozenset({None, "fakequant"})


@dataclass(frozen=True, eq=False)
class Assignment:
    """Where modules stand in the config: their group and the target that hit, or what ignores them, or neither.

    ``transforms``: what they need transformed at run time. Compared by identity: many modules share one.
    """

    group: ConfigGroup | None = None
    target: str | None = None
    ignored_by: str | None = None
    transforms: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    """What a plan is made for."""

    registry: Registry
    environment: Environment
    dtype: str = "bfloat16"
    tensor_parallel: int = 1
    backend: str | None = None
    allow: frozenset[str] = frozenset()
    choices: Choices | None = None


class Resolver:
    """Resolves modules of one checkpoint. Failures are put into :attr:`Resolution.error`, never raised."""

    def __init__(
        self, task: Task, config: QuantConfig, *, stored: bool, transformed: Transformed | None = None
    ) -> None:
        """``stored``: the checkpoint's headers are at hand, so that a layer without tensors misses them.
        ``transformed``: the config's transforms, where their stored matrices are known."""
        self._task = task
        self._config = config
        self._stored = stored
        self._transformed = transformed or Transformed(Transforms(config.transform_config))
        self._known: dict[Any, Resolution] = {}
        #: groups whose format had to be found in the tensors, with what was found
        self.inferred_formats: dict[str, set[str]] = {}

    def resolve(self, module: Module, assignment: Assignment) -> Resolution:
        """What is decided for a module without tensors, or was for another one in the same place (so says its name)."""
        key = (module.kind, module.classes, module.inferred, _place(module.name, assignment))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._decide(module, assignment, {})
        return known

    def resolve_family(self, modules: Modules, name: str, family: Family, assignment: Assignment) -> Resolution:
        """What is decided for module ``name`` of ``family``, or was for another one in the same place (so says its
        name): see :class:`.layers.Layers`."""
        key: Any = (family, assignment)
        if name in (assignment.target, assignment.ignored_by):
            key = (family, _place(name, assignment))
        if self._task.tensor_parallel > 1:  # then the name says how a layer is cut
            key = (*key, name.rpartition(".")[2])
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._decide(modules.module(name), assignment, modules.tensors(name))
        return known

    def by_family(self, name: str, assignment: Assignment) -> bool:
        """Is what is decided for this module decided for every other of its family with the same assignment?"""
        return self._task.tensor_parallel == 1 and name not in (assignment.target, assignment.ignored_by)

    def cache(self, module: Module, tensors: Mapping[str, TensorEntry] | None = None) -> Resolution:
        """The quantized key and value cache of an attention module, resolved by rules like any layer."""
        scheme = self._config.kv_cache_scheme
        result = Resolution(
            module.name, "kv_cache", module.classes, module.inferred, group="kv_cache_scheme", inputs=scheme,
            tensors=tensors or {},
        )  # fmt: skip
        try:
            self._choose(result, module, LayerFacts("kv_cache", None, None, scheme), None)
        except QuantDispatchError as error:
            result.error = self._with_engines(error, result, None)
        return result

    def _decide(self, module: Module, assignment: Assignment, tensors: Mapping[str, TensorEntry]) -> Resolution:
        group = assignment.group
        result = Resolution(
            module.name, module.kind or "linear", module.classes, module.inferred,
            target=assignment.target, ignored_by=assignment.ignored_by, tensors=tensors, format=DENSE,
            transforms=assignment.transforms,
        )  # fmt: skip
        try:
            if module.kind is None:
                self._check_transforms(result, module)
                arbitration.check_never_quantized(module, self._config.stored_names)
                if module.tensors:
                    return result
            if group is None:
                arbitration.check_left_dense(module, assignment.ignored_by, self._config.stored_names)
            else:
                result.group = group.name
                result.weights, result.inputs, result.outputs = group.weights, group.inputs, group.outputs
                result.format = None  # until it is known
                result.format = self._format(module, group, assignment.target)
            facts = LayerFacts(result.kind, result.format, result.weights, result.inputs, result.outputs)
            if group is None and module.kind == "attention":  # nothing of it is quantized, but it is transformed
                self._check_transforms(result, module)
            self._choose(result, module, facts, group)
        except QuantDispatchError as error:
            result.error = self._with_engines(error, result, group)
        return result

    def _with_engines(
        self, error: QuantDispatchError, result: Resolution, group: ConfigGroup | None
    ) -> QuantDispatchError:
        """The error, with what engines run where no rule of ours accepts the layer, or its format is unknown."""
        args = (result.weights, result.inputs, result.outputs)
        ours = self._config.translated_by is None  # engines read a foreign config by other code than is known here
        if ours and result.rule is None and isinstance(error, (NoSchemeFound, ConfigError)) and any(args):
            stored = result.format if isinstance(error, NoSchemeFound) else None
            peers.explain(
                error, LayerFacts(result.kind, stored, *args), self._sight(result, group), self._task.environment
            )
        return error

    def _sight(self, result: Resolution, group: ConfigGroup | None) -> Sight:
        return sight_of(self._config, group, result.target, name=result.name, online=bool(result.transforms))

    def _format(self, module: Module, group: ConfigGroup, target: str | None) -> str | None:
        name = self._config.effective_format(group)
        if module.tensors and name != DENSE:
            arbitration.check_stored_quantized(module, group, target)
        if name not in _OPEN_FORMATS or (name is not None and not module.tensors) or group.weights is None:
            return name
        name = arbitration.infer_format(module, group, self._config.path)
        self.inferred_formats.setdefault(group.name, set()).add(name)
        return name

    def _choose(self, result: Resolution, module: Module, facts: LayerFacts, group: ConfigGroup | None) -> None:
        """Fill in rule, scheme, shape and kernel, as far as it goes before an error is raised."""
        registry = self._task.registry
        decision = registry.resolve(facts)
        result.trace = Trace(decision.trace)
        rule = result.rule = decision.rule
        if rule is None:
            raise self._no_scheme(facts, module.name, decision)
        with blamed(rule, module.name):
            self._fill_in(result, module, facts, group, rule)

    def _fill_in(
        self, result: Resolution, module: Module, facts: LayerFacts, group: ConfigGroup | None, rule: Rule
    ) -> None:
        registry = self._task.registry
        scheme = registry.scheme_class(rule)(facts, version=self._config.version)
        result.scheme, result.scheme_object = scheme.name, scheme
        if scheme.name != DENSE and self._config.translated_by is None:
            sight, environment = self._sight(result, group), self._task.environment
            result.equivalents, result.differs = peers.notes(rule, facts, scheme.name, sight, environment)
        attends = facts.kind in ("kv_cache", "attention")
        cached = CACHE_NAMES if self._config.kv_cache_scheme is not None and not attends else frozenset()
        own = {name: t for name, t in module.tensors.items() if name not in cached}
        if result.transforms:
            own, matrices = _without_matrices(own, self._transformed.transforms.running(result.transforms))
            cached |= matrices
        if "weight" in own or (self._stored and (group is not None or attends)):
            result.shape = scheme.check(module.name, own)
            required, optional = scheme.tensor_names()
            if attends:  # an attention module may have parameters of its own, such as sinks
                cached = frozenset(own).difference(quantized_names(own))
            if group is not None or attends:
                arbitration.check_owned(module, required | optional | cached, scheme.name)
        part = result.shape and shard(module.name, scheme, result.shape, self._task.tensor_parallel)
        spec = scheme.kernel_spec(part, self._task.dtype, tensors=frozenset(own))
        spec = replace(spec, allow=self._task.allow) if self._task.allow else spec
        choices = self._task.choices
        result.spec = spec if choices is None else choices.applied(spec, self._task.environment)
        self._check_transforms(result, module, part)
        if scheme.name == DENSE:
            result.backend = TORCH
        else:
            self._choose_kernel(result, scheme)

    def _check_transforms(self, result: Resolution, module: Module, part: LayerShape | None = None) -> None:
        if result.transforms:
            self._transformed.check(
                module.name, module.kind, result.transforms, module.tensors, shape=result.shape, part=part,
                stored=self._stored,
            )  # fmt: skip

    def _choose_kernel(self, result: Resolution, scheme: Scheme) -> None:
        assert result.spec is not None
        task = self._task
        selection = result.selection = task.registry.select(result.spec, task.environment, task.backend)
        result.trace = Trace(result.trace.rules, selection.trace)
        kernel = selection.kernel
        if kernel is None:
            raise _no_kernel(result, task)
        result.backend, result.kernel = kernel.backend, kernel.name
        result.conditions, result.deviations = selection.conditions, kernel.deviations

    def _no_scheme(self, facts: LayerFacts, name: str, decision: Decision) -> NoSchemeFound:
        nearest = self._task.registry.nearest(facts)
        first = next((m for candidate in nearest for m in candidate.mismatches), None)
        return NoSchemeFound(
            f"no rule accepts {describe(facts)}",
            layer=name,
            field=first.field if first else "config_groups",
            observed=first.shown if first else describe(facts),
            required=str(first.required) if first else "args that a rule accepts",
            nearest=nearest,
            remedy=_change(facts, nearest),
            code="QD701",
        )


def _without_matrices(
    tensors: Mapping[str, TensorInfo], transforms: Sequence[Transform]
) -> tuple[dict[str, TensorInfo], frozenset[str]]:
    """A layer's own tensors, and the names of those that are its transforms'."""
    modules = {transform.module for transform in transforms}
    theirs = frozenset(name for name in tensors if name.partition(".")[0] in modules and "." in name)
    return {name: tensor for name, tensor in tensors.items() if name not in theirs}, theirs


def _place(name: str, assignment: Assignment) -> tuple[Any, ...]:
    """Where a module stands, the same for all that an entry of their own name put there: lists of names are long."""
    group, target, ignored = assignment.group, assignment.target, assignment.ignored_by
    return (
        group and group.name,
        (target == name) or target,
        (ignored == name) or ignored,
        assignment.transforms,
    )


def describe(facts: LayerFacts) -> str:
    """``"moe layer, weights int4 symmetric, group 32, format pack-quantized"``: kind, args and format in words."""
    words = [f"{facts.kind} layer" if facts.kind not in ("kv_cache", "attention", "lm_head") else facts.kind]
    words += [f"{side} {args.describe()}" for side in SIDES if (args := getattr(facts, side)) is not None]
    return ", ".join([*words, *([f"format {facts.format}"] if facts.format is not None else [])])


def _change(facts: LayerFacts, nearest: Sequence[Any]) -> str:
    """The one change that would make the layer resolve, and who else could help."""
    plugin = known_plugin(facts)
    if plugin is not None:
        other = plugin.remedy
    elif facts.kind == "kv_cache":
        other = "take kv_cache_scheme out of the config to keep the cache in the model's dtype, or install a plugin"
    else:
        other = "install a plugin that has a rule for it"
    first = nearest[0] if nearest else None
    if first is None or not first.mismatches:
        return other
    wanted = " and ".join(f"{m.field} were {m.required} instead of {m.shown}" for m in first.mismatches)
    return f"it would resolve as {first.rule.name} if {wanted}; or {other}"


def _no_kernel(result: Resolution, task: Task) -> NoKernelFound:
    where = task.environment.describe()
    trace = result.trace.kernels
    assert result.spec is not None
    if task.backend is not None:  # the others' reasons are that they were not asked for
        trace = tuple(candidate for candidate in trace if candidate.kernel.backend == task.backend)
    reasons = "; ".join(map(str, trace)) or "no kernel is registered for it"
    if task.backend is not None:
        remedy = f"leave out backend={task.backend!r} to choose among all kernels"
    else:
        remedy = "install a package that has one, or choose another device"
    return NoKernelFound(
        f"no kernel computes {result.scheme} on {where}: {reasons}",
        layer=result.name,
        **refusal(trace, result.spec, task.backend),
        nearest=trace,
        remedy=remedy,
        code="QD751",
    )
