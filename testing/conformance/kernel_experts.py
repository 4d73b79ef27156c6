"""What is asked of a kernel that computes all routed experts of a layer in one call, by the function ``fuse`` of its
class (:class:`quantdispatch.engines.fused_experts.Fusing`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ...registry.lazy import load_target
from . import diagnosis
from .checks import Checks, Nonconformance, NotApplicable
from .layers import Layer
from .trial import Trial, difference, same_bits

if TYPE_CHECKING:
    from .backend import BackendConformance

CHECKS = Checks()
EXPERTS, CHOSEN = 3, 2
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
#: of the tolerance of one product: hidden values are rounded too, and quantized ones fall on either side of a step
_ROUNDED, _QUANTIZED = 3, 16


@dataclass
class Experts:
    """The trials of each expert's projections, bound: the gate, what it gates (or not), and the last."""

    trials: list[list[Trial]]
    bound: list[list[tuple[Any, dict[str, Tensor]]]]

    def fused(self, activation: str) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
        """The kernel's function, ``None`` where it does not compute these together."""
        first, last = [own[:-1] for own in self.bound], [own[-1] for own in self.bound]
        found: Any = type(last[0][0]).fuse(first, last, activation)
        if found is not None and not callable(found):
            raise Nonconformance(f"fuse gives {type(found).__name__}, required a function or None")
        return None if found is None else cast(Callable[[Tensor, Tensor, Tensor], Tensor], found)

    def exact(self, x: Tensor, routed: Routed, activation: Callable[[Tensor], Tensor], order: slice) -> Tensor:
        """The weighted sum, float64 [T, H]."""
        total = torch.zeros(x.shape, dtype=torch.float64)
        for number, own in enumerate(self.trials):
            tokens, places = torch.where(routed.index == number)
            if tokens.numel():
                *first, last = own
                gate, *up = [trial.truth.output(x[tokens]) for trial in first[order]]
                hidden = activation(gate) * up[0] if up else activation(gate)
                y = last.truth.output(hidden.float())
                total.index_add_(0, tokens, y * routed.weights[tokens, places, None].double())
        return total


@dataclass
class Routed:
    """Which experts each token goes to, int64 [T, k], and how much of each counts, fp32 [T, k]."""

    index: Tensor
    weights: Tensor


def fusing(subject: BackendConformance, part: str) -> bool:
    """Has the kernel's class a function ``fuse``?"""
    return callable(getattr(load_target(subject.records[part].target), "fuse", None))


@CHECKS("load/experts", "subject", since="1.1")
def declared(subject: BackendConformance) -> None:
    """A kernel that has ``fuse`` and takes experts declares ``fused-experts``, and who declares it has one."""
    able = [
        part
        for part in subject.parts()
        if fusing(subject, part) and any(layer.kind == "moe" for layer in subject.chosen_layers(part))
    ]
    said = "fused-experts" in subject.capabilities
    if able and not said:
        raise Nonconformance(f"{', '.join(able)} can fuse experts, and 'fused-experts' is not among the capabilities")
    if said and not able:
        raise Nonconformance("'fused-experts' is declared, and no kernel that takes experts has a function `fuse`")


def experts_of(subject: BackendConformance, part: str, layer: Layer, gated: bool = True) -> Experts:
    """:data:`EXPERTS` experts of ``layer``'s args. Raises ``NotApplicable`` where the kernel does not take them."""
    if layer.kind != "moe" or not fusing(subject, part):
        raise NotApplicable("of experts, and of kernels with a function `fuse`")
    for up in (layer, layer.with_(n=layer.k)):
        down = up.with_(n=up.k, k=up.n)
        if all(subject.fits(one) and subject.admits(part, one) for one in (up, down)):
            break
    else:
        raise NotApplicable("the projection back has a size that the kernel does not take")
    kernel, trials = subject.records[part], []
    for expert in range(EXPERTS):
        own = [*([up] * (2 if gated else 1)), down]
        trials.append([subject.trial(one.with_(seed=one.seed + 7 * expert + i), part) for i, one in enumerate(own)])
    bound = [[(impl := trial.impl(kernel), trial.pack(impl, _tamed(trial))) for trial in own] for own in trials]
    return Experts(trials, bound)


def _tamed(trial: Trial) -> Any:
    """Operands with scales by which outputs are about as large as inputs: an activation shows nothing of huge ones."""
    truth = trial.truth
    scale = truth.operands.scale
    if scale is not None and scale.dtype in (torch.bfloat16, torch.float16, torch.float32):
        size = truth.weight().norm(dim=1).mean().clamp(min=1e-6)
        tamed = (scale.double() / size).to(scale.dtype)
        trial.truth = replace(truth, operands=replace(truth.operands, scale=tamed))
        trial.operands = replace(trial.operands, scale=tamed.to(trial.device))
    return trial.operands


def _routed(tokens: int, seed: int) -> Routed:
    """Some of the experts live elsewhere: -1, and one more than there are."""
    random = torch.Generator().manual_seed(seed)
    index = torch.stack([torch.randperm(EXPERTS + 2, generator=random)[:CHOSEN] - 1 for _ in range(tokens)])
    index[0, 0] = 0
    return Routed(index, torch.rand(tokens, CHOSEN, generator=random) + 0.1)


@CHECKS("numerics/experts", "layer", needs="fused-experts", since="1.1")
def experts(subject: BackendConformance, part: str, layer: Layer) -> None:
    """All experts in one call give the weighted sum of the chosen, of one token and of many, gated and not; experts
    that live elsewhere add nothing."""
    together = 0
    for gated, activation in ((True, "silu"), (False, "gelu"), (True, "gelu_tanh")):
        made = experts_of(subject, part, layer, gated)
        run = made.fused(activation)
        if run is None:
            continue
        together += 1
        for tokens in (1, 7, 33):
            trial, routed = made.trials[0][0], _routed(tokens, tokens)
            x = trial.inputs(tokens)
            given = [value.clone().to(trial.device) for value in (routed.index, routed.weights)]
            with torch.no_grad():
                y = run(x, *given)
            _compare(made, trial, x, routed, y, activation)
        with torch.no_grad():
            empty = run(x[:0], given[0][:0], given[1][:0])
        if empty.shape != (0, x.shape[1]) or empty.dtype != x.dtype:
            raise Nonconformance(f"no tokens give {empty.dtype} {list(empty.shape)}, required [0, {x.shape[1]}]")
    if not together:
        raise NotApplicable("the kernel does not compute such experts together: fuse gives None")


def _compare(made: Experts, trial: Trial, x: Tensor, routed: Routed, y: Tensor, activation: str) -> None:
    y, seen, act = y.cpu(), x.cpu(), _ACTIVATIONS[activation]
    exact = made.exact(seen, routed, act, slice(None))
    if y.shape != exact.shape or y.dtype != x.dtype:
        raise Nonconformance(f"experts give {y.dtype} {list(y.shape)}, required {x.dtype} {list(exact.shape)}")
    limit = trial.tolerance * (_ROUNDED if trial.computed.inputs is None else _QUANTIZED)
    if diagnosis.close(y, exact, limit):
        return
    guess = next((words for words, wrong in _mistakes(made, seen, routed, act) if diagnosis.close(y, wrong, limit)), "")
    raise Nonconformance(
        f"experts differ by {diagnosis.error(y, exact):.2e} of the norm, at most {limit:.1e} "
        f"({x.shape[0]} tokens, {activation}){guess and '; it looks as if '}{guess}"
    )


def _mistakes(
    made: Experts, x: Tensor, routed: Routed, act: Callable[[Tensor], Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """What well-known mistakes give."""
    index, weights, all_of = routed.index, routed.weights, slice(None)
    yield "the gate and what it gates are exchanged", made.exact(x, routed, act, slice(None, None, -1))
    yield "the experts' weights are ignored", made.exact(x, Routed(index, torch.ones_like(weights)), act, all_of)
    inside = Routed(index.clamp(0, EXPERTS - 1), weights)
    yield "an expert that lives elsewhere is taken for one that is here", made.exact(x, inside, act, all_of)
    yield "the activation is left out", made.exact(x, routed, lambda gate: gate, all_of)
    for words, one in (("first", 0), ("last", -1)):
        alone = Routed(index[:, one : one + 1 or None], weights[:, one : one + 1 or None])
        yield f"only the {words} of the chosen experts counts", made.exact(x, alone, act, all_of)
    turned = Routed(torch.where((index >= 0) & (index < EXPERTS), EXPERTS - 1 - index, index), weights)
    yield "the experts are in reverse order", made.exact(x, turned, act, all_of)


@CHECKS("lifecycle/experts", "layer", needs="fused-experts", since="1.1")
def untouched(subject: BackendConformance, part: str, layer: Layer) -> None:
    """Fused, each expert is what it was: it gives back its tensors and computes alone; what is given stays as it is."""
    made = experts_of(subject, part, layer)
    alone = made.trials[1][0]
    impl, state = made.bound[1][0]
    x, routed = alone.inputs(), _routed(5, 0)
    before = alone.apply(impl, x, state).clone()
    run = made.fused("silu")
    if run is None:
        raise NotApplicable("the kernel does not compute such experts together: fuse gives None")
    given = [x, routed.index.to(alone.device), routed.weights.to(alone.device)]
    kept = [value.clone() for value in given]
    with torch.no_grad():
        results = [run(*given) for _ in range(2)]
    changed = [name for name, a, b in zip(("x", "index", "weights"), given, kept, strict=True) if not same_bits(a, b)]
    if changed:
        raise Nonconformance(f"what it is given is changed: {', '.join(changed)}")
    if results[0].untyped_storage().data_ptr() == results[1].untyped_storage().data_ptr():
        raise Nonconformance("the next call changes an earlier result: the memory of results is used again")
    for own_trials, own in zip(made.trials, made.bound, strict=True):
        for trial, (one, tensors) in zip(own_trials, own, strict=True):
            found = difference(trial.unpack(one, tensors), trial.operands)
            if found:
                raise Nonconformance(f"after fusing an expert is not what was packed: {found}")
    if not diagnosis.close(alone.apply(impl, x, state).cpu(), before.cpu(), alone.tolerance):
        raise Nonconformance("after fusing an expert alone computes something else")


@CHECKS("lifecycle/unlike-experts", "layer", needs="fused-experts", since="1.1")
def unlike(subject: BackendConformance, part: str, layer: Layer) -> None:
    """What cannot be computed together is refused by ``None``: an activation that nobody knows, and no experts or one
    that has another number of projections."""
    made = experts_of(subject, part, layer)
    if made.fused("an activation that nobody knows") is not None:
        raise Nonconformance("fuse takes an activation that it cannot know")
    cases: dict[str, Sequence[Any]] = {"with one projection fewer": made.bound[0][1:]}
    for words, own in cases.items():
        if Experts(made.trials, [list(own), *made.bound[1:]]).fused("silu") is not None:
            raise Nonconformance(f"fuse takes experts together of which one is {words}")
