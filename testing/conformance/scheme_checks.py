"""What is asked of a rule and its scheme: that it declares what is stored, refuses what is not, and resolves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...engines.tensors import CODES, described
from ...registry.errors import CheckpointError
from ...registry.lazy import load_target
from ...registry.rules import builtin_rules
from ...registry.scheme import LayerShape
from . import common_checks
from .checks import Checks, Nonconformance, NotApplicable
from .layers import LAYER_CAPABILITIES, OF_KERNELS, Layer
from .trial import Trial

if TYPE_CHECKING:
    from .scheme import SchemeConformance

CHECKS = Checks()

CHECKS("load/declarations", "subject")(common_checks.declarations)
CHECKS("load/collects", "subject")(common_checks.collects)
CHECKS("load/is-light", "subject")(common_checks.is_light)


@CHECKS("load/scheme", "part")
def scheme(subject: SchemeConformance, part: str) -> None:
    """The rule's scheme and its torch half are there, with all their methods."""
    found = subject.registry.scheme_class(subject.found[part])
    half: Any = load_target(found.numerics)
    needed = ("operands", "stored", "dequantize", *(() if hasattr(half, "quantize") else ("forward",)))
    missing = [name for name in needed if not callable(getattr(half, name, None))]
    if missing:
        raise Nonconformance(f"{found.numerics} has no {', '.join(missing)}")


@CHECKS("load/declares", "layer")
def declares(subject: SchemeConformance, part: str, layer: Layer) -> None:
    """What it declares is what the format's writer stores: names, shapes, dtypes, axes; sizes follow from it."""
    trial = subject.trial(part, layer)
    tensors, made = described(subject.stored(trial)), trial.scheme
    required, optional = made.tensor_names()
    strangers = sorted(tensors.keys() - required - optional - {"bias"})
    if strangers:
        raise Nonconformance(f"the writer stores {', '.join(strangers)}, which the scheme does not name")
    shape = made.check("layer", tensors)
    if trial.shape is None:
        return
    if shape is None or (shape.n, shape.k) != (layer.n, layer.k):
        seen = "nothing" if shape is None else f"N {shape.n}, K {shape.k}"
        raise Nonconformance(f"from the headers it reads {seen}, required N {layer.n}, K {layer.k}")
    known = set(CODES.values())
    for tensor in made.stored(shape):
        if tensor.name not in required | optional:
            raise Nonconformance(f"stored() has {tensor.name}, tensor_names() has not")
        if tensor.axes and any(len(tensor.axes) < len(one) for one in tensor.shapes):
            raise Nonconformance(f"{tensor.name} has axes {tensor.axes} for the shapes {tensor.shapes}")
        if tensor.dtypes - known:
            raise Nonconformance(f"{tensor.name} has dtypes that no file has: {sorted(tensor.dtypes - known)}")


@CHECKS("load/refuses", "sample")
def refuses(subject: SchemeConformance, part: str, layer: Layer) -> None:
    """A tensor that is missing, of another dtype or of another shape is a ``CheckpointError`` that names it."""
    trial = subject.trial(part, layer)
    tensors, made = subject.stored(trial), trial.scheme
    required, _ = made.tensor_names()
    for name in sorted(required & tensors.keys()):
        without = {other: value for other, value in tensors.items() if other != name}
        _must_refuse(made, without, name, "is missing")
        _must_refuse(made, {**tensors, name: tensors[name].to(torch.complex64)}, name, "has a dtype of no file")
        # beside one scale for all the matrix says what the layer is; a cache's parts have as many heads as they have
        if trial.shape is not None and len(required) > 1 and not (name in _matrices(trial) and _one_scale(layer)):
            longer = torch.cat((tensors[name],) * 3) if tensors[name].ndim else tensors[name].expand(2, 2)
            _must_refuse(made, {**tensors, name: longer}, None, f"{name} is three times as long")


def _matrices(trial: Trial) -> set[str]:
    assert trial.shape is not None
    return {tensor.name for tensor in trial.scheme.stored(trial.shape) if {"in", "out"} <= set(tensor.axes)}


def _one_scale(layer: Layer) -> bool:
    return layer.weights is not None and layer.weights.strategy == "tensor"


def _must_refuse(made: Any, tensors: dict[str, Any], name: str | None, fault: str) -> None:
    try:
        made.check("layer", described(tensors))
    except CheckpointError as error:
        if error.layer != "layer" or (name is not None and name not in str(error)):
            raise Nonconformance(
                f"{name or 'what'} {fault}: the error does not name layer and tensor: {error}"
            ) from None
        return
    raise Nonconformance(f"a layer of which {name or ''} {fault} is taken".replace("  ", " "))


@CHECKS("load/values", "sample")
def values(subject: SchemeConformance, part: str, layer: Layer) -> None:
    """Scales that are NaN or negative are a ``CheckpointError`` that names layer and tensor, and not wrong text."""
    trial = subject.trial(part, layer)
    tensors = subject.stored(trial)
    scales = [name for name, value in tensors.items() if "scale" in name and value.is_floating_point()]
    if not scales:
        raise NotApplicable("the layer stores no scales that are floats")
    for name in scales:
        for wrong in (float("nan"), -1.0):
            spoilt = tensors[name].float().clone()
            spoilt.view(-1)[0] = wrong
            given = {**tensors, name: spoilt.to(tensors[name].dtype)}
            try:
                trial.numerics.operands(given, trial.shape, "layer")
            except CheckpointError as error:
                if error.layer != "layer" or name not in str(error):
                    raise Nonconformance(f"{name} holds {wrong}, and the error does not name it: {error}") from None
            else:
                raise Nonconformance(f"{name} holds {wrong}, and is taken")


@CHECKS("table/layers", "part")
def layers(subject: SchemeConformance, part: str) -> None:
    """The rule takes some layer, so that the rest of the kit has something to try."""
    if not subject.chosen_layers(part):
        raise Nonconformance(f"{part} takes none of the usual layers: give `layers` that it is for")


@CHECKS("table/capabilities", "subject")
def capabilities(subject: SchemeConformance) -> None:
    """What the rules take is what the class declares, no more and no less: a predicate too wide shows here."""
    admitted = dict(subject.admitted_capabilities())
    common_checks.capabilities_hold(subject, admitted, frozenset(LAYER_CAPABILITIES) - OF_KERNELS)


@CHECKS("table/clean", "subject")
def clean(subject: SchemeConformance) -> None:
    """The static checks find nothing in the plugin's rules: none is empty, shadowed, or overlaps undeclared."""
    from ..static import assert_rules_clean

    if not subject.plugins:
        own = {rule.name for rule in builtin_rules()}
        if not set(subject.rules) <= own:
            raise Nonconformance(f"no such rules: {', '.join(sorted(set(subject.rules) - own))}")
        raise NotApplicable("of built-in rules `quantdispatch rules --check` asks it, all at once")
    assert_rules_clean(*subject.plugins)


@CHECKS("table/served", "sample")
def served(subject: SchemeConformance, part: str, layer: Layer) -> None:
    """What is asked of a kernel is complete: some kernel takes it, with sizes known and unknown."""
    from ...registry.environment import Environment

    trial = subject.trial(part, layer)
    environment = Environment.detect("cpu")
    for spec in (trial.spec, trial.scheme.kernel_spec(None, layer.dtype)):
        if subject.registry.select(spec, environment).kernel is None:
            raise Nonconformance(f"no kernel takes op {spec.op!r}, not even the reference")
    spec = trial.spec
    if trial.shape is not None and (spec.n, spec.k) != (layer.n, layer.k):
        raise Nonconformance(f"the kernel is asked for N {spec.n}, K {spec.k}, the layer has {layer.n}, {layer.k}")
    if spec.dtype != layer.dtype or spec.bias != layer.bias:
        raise Nonconformance(f"the kernel is asked for {spec.dtype}, bias {spec.bias}: not what the layer has")
    for side in ("weights", "inputs", "outputs"):
        if getattr(spec, side) != getattr(layer, side):
            raise Nonconformance(f"the kernel is asked for {side} {getattr(spec, side)}, the layer has others")


@CHECKS("table/sharded", "sample")
def sharded(subject: SchemeConformance, part: str, layer: Layer) -> None:
    """Some stored tensor runs along N and K, so that a module of these tensors is found to be a layer."""
    trial = subject.trial(part, layer)
    if trial.shape is None:
        raise NotApplicable("there is no weight matrix")
    made = trial.scheme.stored(LayerShape(layer.n, layer.k, "dense"))
    if not any({"in", "out"} <= set(tensor.axes) for tensor in made):
        raise Nonconformance("no tensor has an axis 'in' and an axis 'out': no module would be taken for such a layer")
