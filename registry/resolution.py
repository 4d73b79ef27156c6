"""What a plan says about one layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .args import QuantArgs
from .errors import QuantDispatchError
from .facts import KernelSpec
from .kernels import KernelCandidate, Selection
from .rules.rule import Rule
from .scheme import LayerShape, Scheme
from .stored_tensors import TensorEntry
from .table import RuleCandidate


@dataclass(frozen=True)
class Trace:
    """Every rule and every kernel that was looked at, in order, each with what kept it out."""

    rules: tuple[RuleCandidate, ...] = ()
    kernels: tuple[KernelCandidate, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"rules": [r.to_json() for r in self.rules], "kernels": [k.to_json() for k in self.kernels]}


@dataclass(slots=True)
class Resolution:
    """One layer: what the config says of it, which rule, scheme and kernel that means, and why.

    ``kind``: see :data:`.facts.KINDS`. ``classes``, ``inferred``: its class names and how they were found. ``group``,
    ``target``: the config group and its entry that hit; ``ignored_by``: the ignore entry that hit. ``scheme``,
    ``backend``, ``kernel``: names. ``conditions``: what the kernel's choice still depends on (unknown shapes).
    ``deviations``: what the kernel computes differently from the scheme. ``equivalents``, ``differs``: of the rule.
    ``error``: why the layer does not resolve. ``shape``: of the whole layer, before tensor parallelism; ``spec`` and
    ``selection`` are those of one rank. ``tensors``: headers by local name. ``transforms``: what transform_config wants
    applied around the layer at run time, each as ``"NAME at LOCATION (TYPE, ...)"``.

    Layers alike share everything but name, tensors and error.
    """

    name: str
    kind: str
    classes: tuple[str, ...] = ()
    inferred: str = ""
    group: str | None = None
    target: str | None = None
    ignored_by: str | None = None
    weights: QuantArgs | None = None
    inputs: QuantArgs | None = None
    outputs: QuantArgs | None = None
    format: str | None = None
    rule: Rule | None = None
    scheme: str | None = None
    backend: str | None = None
    kernel: str | None = None
    conditions: tuple[str, ...] = ()
    deviations: tuple[str, ...] = ()
    equivalents: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    differs: Mapping[str, str] = field(default_factory=dict)
    trace: Trace = field(default_factory=Trace)
    error: QuantDispatchError | None = None
    shape: LayerShape | None = None
    scheme_object: Scheme | None = None
    spec: KernelSpec | None = None
    selection: Selection | None = None
    tensors: Mapping[str, TensorEntry] = field(default_factory=dict)
    transforms: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The layer's entry of ``explain --json``: every key always present, in this order."""
        return {
            "name": self.name,
            "kind": self.kind,
            "classes": list(self.classes),
            "inferred": self.inferred,
            "group": self.group,
            "target": self.target,
            "ignored_by": self.ignored_by,
            "weights": args_json(self.weights),
            "inputs": args_json(self.inputs),
            "outputs": args_json(self.outputs),
            "format": self.format,
            "transforms": list(self.transforms),
            "rule": None if self.rule is None else self.rule.name,
            "rule_source": None if self.rule is None else _origin(self.rule),
            "scheme": self.scheme,
            "backend": self.backend,
            "kernel": self.kernel,
            "ranked": None if self.selection is None else self.selection.ranked or None,
            "conditions": list(self.conditions),
            "deviations": list(self.deviations),
            "equivalents": {engine: list(names) for engine, names in sorted(self.equivalents.items())},
            "differs": dict(sorted(self.differs.items())),
            "shape": None if self.shape is None else {"n": self.shape.n, "k": self.shape.k},
            "tensors": {name: {"dtype": t.dtype, "shape": list(t.shape)} for name, t in sorted(self.tensors.items())},
            "trace": self.trace.to_json(),
            "error": None if self.error is None else self.error.to_json(),
        }

    @property
    def likeness(self) -> tuple[Any, ...]:
        """Equal for layers that a reader would put on one line: all but name and shape agree."""
        error = None if self.error is None else (type(self.error), str(self.error).replace(self.name, "*"))
        args = (self.weights, self.inputs, self.outputs, self.format, self.transforms)
        choice = (
            self.rule and self.rule.name,
            self.scheme,
            self.backend,
            self.kernel,
            self.conditions,
            self.deviations,
        )
        return (self.kind, self.classes, self.group, self.target, self.ignored_by, args, choice, error)


def args_json(args: QuantArgs | None) -> dict[str, Any] | None:
    return None if args is None else args.to_json()


def _origin(rule: Rule) -> dict[str, str]:
    return {"distribution": rule.distribution, "version": rule.version, "source": rule.source}
