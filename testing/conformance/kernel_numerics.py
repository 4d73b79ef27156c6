"""What is asked of a kernel's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import diagnosis
from .checks import Checks, Nonconformance, NotApplicable
from .layers import Layer
from .trial import same_bits

if TYPE_CHECKING:
    from .backend import BackendConformance

CHECKS = Checks()
#: rows of x: one token, a few, and more than most kernels' tiles have
ROWS = (1, 5, 67)


@CHECKS("numerics/output", "layer")
def output(subject: BackendConformance, part: str, layer: Layer) -> None:
    """For one row, a few and many the result is that of the scheme's numerics."""
    trial = subject.trial(layer)
    impl = trial.impl(subject.records[part])
    state = impl.pack(trial.operands)
    for rows in ROWS:
        x = trial.inputs(rows)
        trial.compare(x, trial.apply(impl, x, state), f"{rows} rows")


@CHECKS("numerics/bias", "layer", needs="bias")
def bias(subject: BackendConformance, part: str, layer: Layer) -> None:
    """A row of zeros gives the bias, bit for bit."""
    trial = subject.trial(layer)
    if trial.operands.bias is None or layer.outputs is not None:
        raise NotApplicable("the layer has no bias, or quantizes what it is added to")
    impl = trial.impl(subject.records[part])
    y = trial.apply(impl, torch.zeros_like(trial.inputs(3)), impl.pack(trial.operands))
    if not torch.equal(y.cpu(), trial.operands.bias.cpu().expand(3, -1)):
        words = "the bias is dropped" if not bool(y.any()) else "it is another"
        raise Nonconformance(f"a row of zeros does not give the bias: {words}")


@CHECKS("numerics/rounding", "sample")
def rounding(subject: BackendConformance, part: str, layer: Layer) -> None:
    """Inputs that lie between two integers go to the even one."""
    trial = subject.trial(layer)
    args = layer.inputs
    if args is None or args.type != "int" or not args.dynamic or not args.symmetric or layer.outputs is not None:
        raise NotApplicable("the layer does not make integers of its inputs by scales that a test can choose")
    impl = trial.impl(subject.records[part])
    top = (1 << (args.num_bits - 1)) - 1
    # the largest value makes the scale 1, and what is left are ties
    x = (torch.arange(layer.k) % (2 * min(top, 24)) - min(top, 24) + 0.5).repeat(4, 1)
    x[:, :: args.group_size or layer.k] = top
    x = x.to(trial.dtype).to(trial.device)
    y, exact = trial.apply(impl, x, impl.pack(trial.operands)).cpu().double(), trial.truth.output(x.cpu())
    if diagnosis.close(y, exact, 3 * trial.tolerance):
        return
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "away from zero": lambda v: v.sign() * (v.abs() + 0.5).floor(),
        "towards zero": torch.trunc,
        "down": torch.floor,
        "up": lambda v: (v + 0.5).floor(),
    }
    bare = trial.truth.unquantized("inputs")
    words = [way for way, of in ways.items() if diagnosis.close(y, bare.output(of(x.cpu().float())), 1e-2)]
    raise Nonconformance(
        f"inputs are not rounded half to even: off by {diagnosis.error(y, exact):.2e} of the norm"
        + (f"; it looks as if ties go {words[0]}" if words else "")
    )


@CHECKS("numerics/unbiased", "sample")
def unbiased(subject: BackendConformance, part: str, layer: Layer) -> None:
    """Results are rounded to the nearest: their errors have no direction."""
    trial = subject.trial(layer)
    if trial.spec_op != "linear" or layer.outputs is not None:
        raise NotApplicable("of products only, which are rounded once")
    impl = trial.impl(subject.records[part])
    x = trial.inputs(256)
    y, expected = trial.apply(impl, x, impl.pack(trial.operands)).cpu().double(), trial.expected(x).double()
    shrunk = float(((y - expected) * expected.sign()).mean() / expected.abs().mean().clamp(min=1e-30))
    if not abs(shrunk) <= trial.tolerance / 3:
        raise Nonconformance(
            f"results are {'larger' if shrunk > 0 else 'smaller'} than they should be by {abs(shrunk):.1e} on average, "
            f"at most {trial.tolerance / 3:.1e}: rounded in one direction, or a scale is off"
        )


@CHECKS("numerics/shapes", "sample")
def shapes(subject: BackendConformance, part: str, layer: Layer) -> None:
    """Any leading dimensions, none at all, no rows, and inputs that are not contiguous."""
    trial = subject.trial(layer)
    if trial.spec_op == "kv_cache":
        raise NotApplicable("states have one shape")
    impl = trial.impl(subject.records[part])
    state = impl.pack(trial.operands)
    x = trial.inputs(6)
    width = layer.k if trial.spec_op == "embedding" else layer.n
    trial.compare(x, trial.apply(impl, x.view(2, 3, *x.shape[1:]), state).reshape(6, width), "leading dimensions")
    by_row = layer.inputs is None or layer.inputs.strategy != "tensor" or not layer.inputs.dynamic
    if by_row:
        alone = trial.apply(impl, x[0], state)
        if alone.shape != (width,):
            raise Nonconformance(f"one row gives {list(alone.shape)}, required [{width}]")
    empty = trial.apply(impl, x[:0], state)
    if empty.shape != (0, width) or empty.dtype != trial.dtype:
        raise Nonconformance(f"no rows give {empty.dtype} {list(empty.shape)}, required {trial.dtype} [0, {width}]")
    wide = torch.stack((x, x), -1).flatten(1)[:, ::2] if x.ndim == 2 else torch.stack((x, x), -1)[:, 0]
    if not same_bits(trial.apply(impl, wide, state).cpu(), trial.apply(impl, wide.contiguous(), state).cpu()):
        raise Nonconformance("an input that is not contiguous gives another result than a copy of it")
