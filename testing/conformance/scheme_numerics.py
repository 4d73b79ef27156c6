"""What is asked of a scheme's torch half: stored tensors to operands and back, the weight, the forward."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...registry.operands import Operands
from . import diagnosis
from .checks import Checks, Nonconformance, NotApplicable
from .layers import Layer
from .modules import module_of
from .trial import Trial, difference, same_bits, tensors_difference
from .truth import cached

if TYPE_CHECKING:
    from .scheme import SchemeConformance

CHECKS = Checks()


def _read(subject: SchemeConformance, trial: Trial) -> Operands:
    """What the scheme makes of the written tensors."""
    read: Operands = trial.numerics.operands(subject.stored(trial), trial.shape, "layer")
    return read


@CHECKS("numerics/known-answer", "layer")
def known_answer(subject: SchemeConformance, part: str, layer: Layer) -> None:
    """Of tensors as the format's writer packs them it makes the operands that they mean, bit for bit."""
    trial = subject.trial(part, layer)
    found = difference(_read(subject, trial), trial.operands)
    if found:
        raise Nonconformance(f"stored tensors are read wrongly: {found}")


@CHECKS("numerics/stored", "layer")
def stored(subject: SchemeConformance, part: str, layer: Layer) -> None:
    """Operands are stored as the format's writer packs them, bit for bit."""
    trial = subject.trial(part, layer)
    required, _ = trial.scheme.tensor_names()
    made, expected = trial.numerics.stored(trial.operands, trial.shape), subject.stored(trial)
    if trial.operands.bias is not None:
        made = {"bias": trial.operands.bias, **made}
    # what may be left out, may be added
    added = made.keys() - expected.keys() - required
    found = tensors_difference({name: value for name, value in made.items() if name not in added}, expected)
    if found:
        raise Nonconformance(f"operands are stored wrongly: {found}")


@CHECKS("numerics/weight", "layer")
def weight(subject: SchemeConformance, part: str, layer: Layer) -> None:
    """The weight is what codes, scales and zero points mean."""
    trial = subject.trial(part, layer)
    if trial.shape is None:
        raise NotApplicable("there is no weight matrix")
    read = _read(subject, trial)
    exact = subject.weight(layer, trial.operands)
    for dtype in (None, torch.float32):
        made: Tensor = trial.numerics.dequantize(read, dtype)
        if made.shape != exact.shape:
            raise Nonconformance(f"the weight is {list(made.shape)}, required {list(exact.shape)}")
        limit = 4 * torch.finfo(made.dtype).eps
        if not diagnosis.close(made, exact, limit):
            found = _of_weight(trial, made, limit)
            looks = f"; it looks as if {found}" if found else ""
            error = diagnosis.error(made, exact)
            raise Nonconformance(f"the weight in {made.dtype} differs by {error:.2e}, at most {limit:.1e}{looks}")


def _of_weight(trial: Trial, made: Tensor, limit: float) -> str | None:
    ways = ((words, wrong.weight()) for words, wrong in diagnosis.mistakes(trial.truth))
    for words, wrong in (*ways, *diagnosis.column_mistakes(trial.truth)):
        if diagnosis.close(made, wrong, limit):
            return words
    return "signs are wrong" if diagnosis.close(made.abs(), trial.truth.weight().abs(), limit) else None


@CHECKS("numerics/forward", "layer")
def forward(subject: SchemeConformance, part: str, layer: Layer) -> None:
    """The forward is the product with that weight, inputs and outputs quantized as the args say, and the bias."""
    trial = subject.trial(part, layer)
    if layer.kind == "embedding":
        raise NotApplicable("rows are looked up: numerics/weight has compared them")
    x = trial.inputs(7)
    if trial.shape is None:
        return _cache_forward(trial, x)
    read = _read(subject, trial)
    with torch.no_grad():
        y: Tensor = trial.numerics.forward(x, read)
        empty: Tensor = trial.numerics.forward(x.view(1, 7, -1)[:, :0], read)
    exact = subject.forward(trial, x)
    if y.dtype != x.dtype or y.shape != exact.shape or empty.shape != (1, 0, layer.n):
        raise Nonconformance(f"x {x.dtype} [7, K] gives {y.dtype} {list(y.shape)}, no rows give {list(empty.shape)}")
    step = trial.truth.step
    if step is not None:
        off = (y.double() - exact).abs()
        fits = bool((off > step / 2).double().mean() < 1e-2 and off.max() < 1.1 * step)
    else:
        fits = diagnosis.close(y, exact, trial.tolerance)
    if not fits:
        found = diagnosis.of_output(trial.truth, x, y, trial.tolerance)
        looks = f"; it looks as if {found}" if found else ""
        raise Nonconformance(
            f"the forward differs by {diagnosis.error(y, exact):.2e} of its norm, at most {trial.tolerance:.1e}{looks}"
        )


def _cache_forward(trial: Trial, x: Tensor) -> None:
    o = trial.operands
    for part, back in zip(trial.parts, trial.expected(x), strict=True):
        scale: Tensor = getattr(o, f"{part}_scale")
        if not diagnosis.close(back, cached(x, scale), 3 * trial.tolerance):
            raise Nonconformance(f"{part}: what is read from the cache is not codes times scale")


@CHECKS("lifecycle/unchanged", "sample")
def unchanged(subject: SchemeConformance, part: str, layer: Layer) -> None:
    """Reading, computing and storing change neither the stored tensors nor the operands."""
    trial = subject.trial(part, layer)
    tensors = subject.stored(trial)
    kept = {name: value.clone() for name, value in tensors.items()}
    read = trial.numerics.operands(tensors, trial.shape, "layer")
    before = copy.deepcopy(read)
    trial.expected(trial.inputs(), read)
    trial.numerics.stored(read, trial.shape)
    found = tensors_difference(tensors, kept) or difference(read, before)
    if found:
        raise Nonconformance(f"what it is given is changed: {found}")


@CHECKS("lifecycle/independent", "sample")
def independent(subject: SchemeConformance, part: str, layer: Layer) -> None:
    """Two layers of one scheme do not know of each other."""
    first, second = (subject.trial(part, layer.with_(seed=layer.seed + more)) for more in (0, 1))
    x = first.inputs()
    mine = _read(subject, first)
    before = first.expected(x, mine).clone()
    second.expected(x, _read(subject, second))
    if not same_bits(before, first.expected(x, mine)) or difference(mine, _read(subject, first)):
        raise Nonconformance("a layer's result changes when another is read: state is shared between layers")


@CHECKS("lifecycle/copies", "sample")
def copies(subject: SchemeConformance, part: str, layer: Layer) -> None:
    """Scheme and numerics are pickled and copied: models are."""
    trial = subject.trial(part, layer)
    read = _read(subject, trial)
    x = trial.inputs()
    y = trial.expected(x, read)
    for twin in copy.deepcopy(trial.scheme), pickle.loads(pickle.dumps(trial.scheme)):
        again = Trial(layer, twin, tolerance=trial.tolerance)
        if not same_bits(again.expected(x, read), y):
            raise Nonconformance("a copy of the scheme computes something else")
    pickle.loads(pickle.dumps(trial.numerics))


@CHECKS("lifecycle/module", "sample")
def module(subject: SchemeConformance, part: str, layer: Layer) -> None:
    """In a module it loads what the writer stored, gives that back as its ``state_dict``, and is made dense."""
    trial = subject.trial(part, layer)
    if trial.shape is None or layer.weights is None:
        raise NotApplicable("of quantized weights only")
    kernel = next(kernel for kernel in subject.registry.kernels if kernel.name == _REFERENCE[trial.spec_op])
    tensors: dict[str, Any] = subject.stored(trial)
    made = module_of(trial, kernel)
    made.load_stored(tensors)
    found = tensors_difference({k: v for k, v in made.state_dict().items() if k in tensors}, tensors)
    if found:
        raise Nonconformance(f"the state_dict is not what was loaded: {found}")
    dense = made.dequantize(torch.float32)
    exact = subject.weight(layer, trial.operands)
    if not diagnosis.close(dense.weight.detach(), exact, 4 * torch.finfo(getattr(torch, layer.scale_dtype)).eps + 4e-3):
        raise Nonconformance("the dense module has another weight")


_REFERENCE = {"linear": "reference", "embedding": "reference/embedding"}
