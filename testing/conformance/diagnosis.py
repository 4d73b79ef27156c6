"""What is wrong, in words: a result is compared with what well-known mistakes would give."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .truth import Truth

SWAPPED = "neighbouring codes are swapped: the order of nibbles in a byte"


def mistakes(truth: Truth) -> Iterator[tuple[str, Truth]]:
    """Layers that a mistake makes of ``truth``, with the words for it."""
    o, args = truth.operands, truth.layer.weights
    if o.bias is not None:
        yield "the bias is dropped", truth.with_(bias=None)
        yield "the bias is added twice", truth.with_(bias=o.bias * 2)
    if o.zero_point is not None:
        yield "zero points are ignored", truth.with_(zero_point=None)
        yield "zero points are added where they are to be subtracted", truth.with_(zero_point=-o.zero_point.short())
        for turned in turns(o.zero_point):
            yield "zero points are taken along the wrong axis", truth.with_(zero_point=turned)
    if o.scale is not None:
        for turned in turns(o.scale):
            yield "scales are transposed: taken along the wrong axis", truth.with_(scale=turned)
        if o.scale.shape[1] > 1:
            last = torch.cat((o.scale[:, :-1], o.scale[:, -2:-1]), 1)
            yield "the last group takes the scale of the one before it", truth.with_(scale=last)
            yield "the scale of the first group serves all", truth.with_(scale=o.scale[:, :1].expand_as(o.scale))
    if o.g_idx is not None:
        yield "g_idx is ignored: columns are taken in order", truth.with_(g_idx=None)
    if o.global_scale is not None:
        yield "the global scale is ignored", truth.with_(global_scale=None)
    for words, codes in code_mistakes(o.codes, args.num_bits if args is not None and args.type == "int" else None):
        yield words, truth.with_(codes=codes)
    if truth.layer.inputs is not None:
        yield "inputs are not quantized", truth.unquantized("inputs")
        if o.input_zero_point is not None:
            yield "the zero point of the inputs is ignored", truth.with_(input_zero_point=o.input_zero_point * 0)
    if truth.layer.outputs is not None:
        yield "outputs are not quantized", truth.unquantized("outputs")


def code_mistakes(codes: Tensor, bits: int | None) -> Iterator[tuple[str, Tensor]]:
    """Codes [N, K] as a wrong reading of their words gives them. ``bits``: of integers."""
    n, k = codes.shape
    if k % 2 == 0:
        yield SWAPPED, codes.view(n, k // 2, 2).flip(-1).reshape(n, k)
    if n % 2 == 0:
        yield f"{SWAPPED}, along N", codes.view(n // 2, 2, k).flip(1).reshape(n, k)
    if k % 8 == 0:
        yield "codes are in reverse order within their words", codes.view(n, k // 8, 8).flip(-1).reshape(n, k)
    if n == k:
        yield "codes are transposed", codes.t()
    yield "codes are read along the wrong axis", codes.t().reshape(n, k)
    if bits is not None:
        half = 1 << (bits - 1)
        yield "codes are read without their offset: as unsigned values", codes.short() + half
        wrapped = (codes.short() & (2 * half - 1)) - (half if bits == 8 else 0)
        if not torch.equal(wrapped, codes.short()):
            yield "codes are read without their sign", codes.short() & (2 * half - 1)


def turns(values: Tensor) -> Iterator[Tensor]:
    """A grid [R, G] as it reads along the wrong axis."""
    turned = values.t().reshape(values.shape)
    if not torch.equal(_bits(turned), _bits(values)):
        yield turned
    if values.shape[1] == 1 and values.shape[0] > 1:
        # one value a row, used for a column: what is seen of it has no such shape
        yield values.roll(1, 0)


def _bits(values: Tensor) -> Tensor:
    return values.view(torch.uint8) if values.dtype == torch.float8_e4m3fn else values


def of_output(truth: Truth, x: Tensor, y: Tensor, tolerance: float) -> str | None:
    """The mistake whose result ``y`` is, or ``None``. ``y``: what came of ``x``, and is not what it should be."""
    exact = truth.output(x)
    if y.ndim == 2 and y.shape == exact.shape and close(y, exact.t().reshape(exact.shape), tolerance):
        return "the output is transposed: it holds [N, M] in the shape [M, N]"
    for words, wrong in mistakes(truth):
        if close(y, wrong.output(x), tolerance):
            return words
    bias = 0 if truth.operands.bias is None else truth.operands.bias.double()
    for words, weight in column_mistakes(truth):
        if truth.layer.kind != "embedding" and close(y, truth.inputs(x) @ weight.T + bias, tolerance):
            return words
    codes = _without_input_scale(truth, x, exact - bias)
    if codes is not None and close(y, codes + bias, tolerance):
        return "the scale of the inputs is ignored"
    if close(y.abs(), exact.abs(), tolerance):
        return "signs are wrong"
    ratio = float((y.double() * exact).sum() / exact.square().sum().clamp(min=1e-30))
    if ratio and close(y, exact * ratio, tolerance):
        return f"the result is {ratio:.4g} times what it should be: a scale is missing or applied twice"
    return None


def _without_input_scale(truth: Truth, x: Tensor, product: Tensor) -> Tensor | None:
    """The product of the inputs' codes, float64, where one factor a row makes it of the right one [..., N]."""
    args, scale = truth.layer.inputs, truth.operands.input_scale
    if args is None or truth.layer.outputs is not None or args.strategy not in ("token", "tensor"):
        return None
    if not args.dynamic:
        return None if scale is None else product / scale.double()
    if not args.symmetric:
        return None
    top = 448 if args.type == "float" else (1 << (args.num_bits - 1)) - 1
    reach = x.double().abs()
    return product * top / (reach.amax(-1, keepdim=True) if args.strategy == "token" else reach.amax())


def column_mistakes(truth: Truth) -> Iterator[tuple[str, Tensor]]:
    """Weights [N, K] that one scale or zero point a row gives where it is used for the columns."""
    o, args = truth.operands, truth.layer.weights
    if args is None or args.strategy != "channel":
        return
    n, k = o.codes.shape
    column = torch.arange(k) % n
    scale = o.scale.double()
    if o.zero_point is not None:
        zero = o.zero_point.double()
        yield "zero points are taken along the wrong axis", (o.codes.double() - zero[column].t()) * scale
    zero = 0 if o.zero_point is None else o.zero_point.double()
    yield "scales are transposed: taken along the wrong axis", (o.codes.double() - zero) * scale[column].t()


def close(y: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Equal but for a relative RMS error of ``tolerance``."""
    return y.shape == expected.shape and error(y, expected) < tolerance


def error(y: Tensor, expected: Tensor) -> float:
    """Relative RMS error."""
    wide = expected.double()
    return float((y.double() - wide).norm() / wide.norm().clamp(min=1e-30))
