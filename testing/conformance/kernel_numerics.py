"""What is asked of a kernel's results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...registry.errors import QuantDispatchError
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
    trial = subject.trial(layer, part)
    impl = trial.impl(subject.records[part])
    state = trial.pack(impl)
    for rows in ROWS:
        x = trial.inputs(rows)
        trial.compare(x, trial.apply(impl, x, state), f"{rows} rows")


@CHECKS("numerics/bias", "layer", needs="bias")
def bias(subject: BackendConformance, part: str, layer: Layer) -> None:
    """A row of zeros gives the bias, bit for bit."""
    trial = subject.trial(layer, part)
    if trial.operands.bias is None or layer.outputs is not None:
        raise NotApplicable("the layer has no bias, or quantizes what it is added to")
    impl = trial.impl(subject.records[part])
    y = trial.apply(impl, torch.zeros_like(trial.inputs(3)), trial.pack(impl))
    if not torch.equal(y.cpu(), trial.operands.bias.cpu().expand(3, -1)):
        words = "the bias is dropped" if not bool(y.any()) else "it is another"
        raise Nonconformance(f"a row of zeros does not give the bias: {words}")


@CHECKS("numerics/rounding", "sample")
def rounding(subject: BackendConformance, part: str, layer: Layer) -> None:
    """Inputs that lie between two integers go to the even one."""
    trial = subject.trial(layer, part)
    args = trial.computed.inputs
    if args is None or args.type != "int" or not args.dynamic or not args.symmetric or layer.outputs is not None:
        raise NotApplicable("the layer does not make integers of its inputs by scales that a test can choose")
    impl = trial.impl(subject.records[part])
    top = (1 << (args.num_bits - 1)) - 1
    # the largest value makes the scale 1, and what is left are ties
    x = (torch.arange(layer.k) % (2 * min(top, 24)) - min(top, 24) + 0.5).repeat(4, 1)
    x[:, :: args.group_size or layer.k] = top
    x = x.to(trial.dtype).to(trial.device)
    y, exact = trial.apply(impl, x, trial.pack(impl)).cpu().double(), trial.truth.output(x.cpu())
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
    trial = subject.trial(layer, part)
    if trial.spec_op not in ("linear", "dense") or layer.outputs is not None:
        raise NotApplicable("of products only, which are rounded once")
    impl = trial.impl(subject.records[part])
    x = trial.inputs(256)
    y, expected = trial.apply(impl, x, trial.pack(impl)).cpu().double(), trial.expected(x).double()
    shrunk = float(((y - expected) * expected.sign()).mean() / expected.abs().mean().clamp(min=1e-30))
    if not abs(shrunk) <= trial.tolerance / 3:
        raise Nonconformance(
            f"results are {'larger' if shrunk > 0 else 'smaller'} than they should be by {abs(shrunk):.1e} on average, "
            f"at most {trial.tolerance / 3:.1e}: rounded in one direction, or a scale is off"
        )


@CHECKS("numerics/shapes", "sample")
def shapes(subject: BackendConformance, part: str, layer: Layer) -> None:
    """Any leading dimensions, none at all, no rows, and inputs that are not contiguous."""
    trial = subject.trial(layer, part)
    if trial.spec_op == "kv_cache":
        raise NotApplicable("states have one shape")
    impl = trial.impl(subject.records[part])
    state = trial.pack(impl)
    x = trial.inputs(6)
    width = layer.k if trial.spec_op == "embedding" else layer.n
    trial.compare(x, trial.apply(impl, x.view(2, 3, *x.shape[1:]), state).reshape(6, width), "leading dimensions")
    if trial.by_row:
        alone = trial.apply(impl, x[0], state)
        if alone.shape != (width,):
            raise Nonconformance(f"one row gives {list(alone.shape)}, required [{width}]")
    empty = trial.apply(impl, x[:0], state)
    if empty.shape != (0, width) or empty.dtype != trial.dtype:
        raise Nonconformance(f"no rows give {empty.dtype} {list(empty.shape)}, required {trial.dtype} [0, {width}]")
    wide = torch.stack((x, x), -1).flatten(1)[:, ::2] if x.ndim == 2 else torch.stack((x, x), -1)[:, 0]
    if not same_bits(trial.apply(impl, wide, state).cpu(), trial.apply(impl, wide.contiguous(), state).cpu()):
        raise Nonconformance("an input that is not contiguous gives another result than a copy of it")


@CHECKS("numerics/leading-dimensions", "sample", since="1.1")
def leading_dimensions(subject: BackendConformance, part: str, layer: Layer) -> None:
    """Leading dimensions come back as given: [2, 3, K] to [2, 3, N], and without rows [2, 0, K] to [2, 0, N]."""
    trial = subject.trial(layer, part)
    if trial.spec_op == "kv_cache":
        raise NotApplicable("states have one shape")
    impl = trial.impl(subject.records[part])
    state, x = trial.pack(impl), trial.inputs(6)
    width = layer.k if trial.spec_op == "embedding" else layer.n
    rows = x[:1].expand(6, *x.shape[1:])  # equal rows in memory of one
    for given, lead in ((x, (2, 3)), (x, (1, 6)), (x, (6, 1)), (x, (1, 2, 3)), (x[:0], (2, 0)), (rows, (2, 3))):
        y = trial.apply(impl, given.view(*lead, *x.shape[1:]), state)
        if y.shape != (*lead, width) or y.dtype != trial.dtype:
            raise Nonconformance(
                f"x [{', '.join(map(str, lead))}, K] gives {y.dtype} {list(y.shape)}, "
                f"required {trial.dtype} {[*lead, width]}"
            )
        if y.numel():
            trial.compare(given, y.reshape(6, width), f"leading dimensions {list(lead)}")


@CHECKS("numerics/rows", "sample", since="1.1")
def rows(subject: BackendConformance, part: str, layer: Layer) -> None:
    """Rows do not know of each other: one that is not a number, or very large, changes no other."""
    trial = subject.trial(layer, part)
    if trial.spec_op not in ("linear", "dense") or not trial.by_row:
        raise NotApplicable("of products whose inputs are not quantized by one scale of all rows")
    impl = trial.impl(subject.records[part])
    state, x = trial.pack(impl), trial.inputs(7)
    for words, value in (("not a number", float("nan")), ("infinite", float("inf")), ("very large", 3e4)):
        spoilt = x.clone()
        spoilt[3] = value
        y = trial.apply(impl, spoilt, state).cpu()
        others = torch.arange(7) != 3
        trial.compare(x[others], y[others], f"beside a row that is {words}")
        # a kernel may give whatever it likes of a row without a meaning, but not a number that looks right
        if value != value and layer.inputs is None and bool(y[3].isfinite().any()):
            raise Nonconformance("a row that is not a number gives numbers: what went wrong before is hidden")


@CHECKS("numerics/range", "sample", since="1.1")
def in_range(subject: BackendConformance, part: str, layer: Layer) -> None:
    """Inputs as large as their dtype allows for the result: sums are not taken in a type that overflows."""
    trial = subject.trial(layer, part)
    if trial.spec_op not in ("linear", "dense") or layer.outputs is not None:
        raise NotApplicable("of products only, whose outputs nothing clamps")
    impl = trial.impl(subject.records[part])
    state, x = trial.pack(impl), trial.inputs(5)
    top = float(trial.expected(x).abs().max())
    factor = min(3e4 / max(top, 1e-30), 3e4 / float(x.abs().max()))
    for words, scaled in (("large", x * factor), ("small", x * 2.0**-7)):
        y = trial.apply(impl, scaled, state)
        if not bool(y.isfinite().all()) and bool(trial.expected(scaled).isfinite().all()):
            raise Nonconformance(
                f"{words} inputs, up to {float(scaled.abs().max()):.0f}, overflow: the result is finite and they give "
                "infinity: sums are taken in too small a type"
            )
        trial.compare(scaled, y, f"{words} inputs")


@CHECKS("numerics/nan-codes", "sample", since="1.1")
def nan_codes(subject: BackendConformance, part: str, layer: Layer) -> None:
    """A weight that is not a number makes its output so, and no other, or is refused by a ``QuantDispatchError``:
    it is not taken for a large number."""
    trial = subject.trial(layer, part)
    weights = layer.weights
    if trial.spec_op != "linear" or weights is None or (weights.type, weights.num_bits) != ("float", 8):
        raise NotApplicable("of weights in fp8, which have a code that is not a number")
    if layer.outputs is not None:
        raise NotApplicable("outputs are quantized, and integers have no such code")
    impl, x = trial.impl(subject.records[part]), trial.inputs(5)
    place = (layer.n // 2, layer.k - 1)
    bits = trial.operands.codes.view(torch.uint8).clone()
    bits[place] = 0x7F
    try:
        state = trial.pack(impl, replace(trial.operands, codes=bits.view(trial.operands.codes.dtype)))
    except QuantDispatchError:
        return
    y, good = trial.apply(impl, x, state).cpu(), trial.expected(x)
    if not bool(y[:, place[0]].isnan().all()):
        raise Nonconformance(
            f"a NaN code in row {place[0]} of the weight gives {float(y[0, place[0]]):g}, required NaN"
        )
    others = torch.arange(layer.n) != place[0]
    if not diagnosis.close(y[:, others], good[:, others], 3 * trial.tolerance):
        raise Nonconformance(f"a NaN code in row {place[0]} of the weight changes other outputs")
