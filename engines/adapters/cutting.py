"""What one tensor-parallel rank keeps of a layer: its outputs, or its inputs, of everything that is stored along them.

Where each tensor may be cut follows from what the scheme declares (:class:`...registry.scheme.StoredTensor.axes`), and
it is cut unpacked: zero points packed along N and rows of 3-bit codes need not end at a word's border.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...registry.args import QuantArgs
from ...registry.errors import CheckpointError
from ...registry.facts import LayerFacts
from ...registry.operands import Operands
from ...registry.scheme import LayerShape, Scheme


@dataclass(frozen=True)
class Cut:
    """``outputs``, ``inputs``: (first, how many) of N and of K that are kept; all where ``None``."""

    outputs: tuple[int, int] | None = None
    inputs: tuple[int, int] | None = None


@dataclass(frozen=True)
class Piece:
    """A part of a layer that is a layer by itself. ``facts``: of it; its groups may be smaller than the whole's."""

    operands: Operands
    shape: LayerShape
    facts: LayerFacts


def cut(name: str, scheme: Scheme, operands: Operands, shape: LayerShape, where: Cut) -> Piece:
    """Raises ``CheckpointError`` naming layer, what is asked for and what it is cut of, where there is not so much of
    it, and where a block of scales would have to be divided."""
    facts = scheme.layer
    axes = _scale_axes(scheme, shape)
    if where.outputs is not None:
        first, count = _inside(name, where.outputs, shape.n, "outputs")
        operands = _outputs(name, operands, axes, facts.weights, shape.n, first, count)
        shape = replace(shape, n=count)
    if where.inputs is not None:
        first, count = _inside(name, where.inputs, shape.k, "inputs")
        if count != shape.k:
            operands, facts = _inputs(name, operands, axes, facts, shape.k, first, count)
            shape = replace(shape, k=count)
    return Piece(operands, shape, facts)


def _scale_axes(scheme: Scheme, shape: LayerShape) -> tuple[str, ...]:
    return next((tensor.axes for tensor in scheme.stored(shape) if tensor.name == "weight_scale"), ())


def _inside(name: str, wanted: tuple[int, int], whole: int, what: str) -> tuple[int, int]:
    first, count = wanted
    if first < 0 or first + count > whole:
        raise CheckpointError(
            f"the engine takes {what} {first} to {first + count} of a layer that has {whole}",
            layer=name, field="tensor_parallel", observed=f"{whole} {what}", required=f"at least {first + count}",
            remedy="config.json and the weights are of two models, or this tensor parallel size does not fit",
            code="QD659",
        )  # fmt: skip
    return first, count


def _outputs(
    name: str, operands: Operands, axes: tuple[str, ...], args: QuantArgs | None, n: int, first: int, count: int
) -> Operands:
    def along(values: Tensor | None) -> Tensor | None:
        if values is None or not axes:
            return values
        if axes[0] == "out":
            return values.narrow(0, first, count)
        if axes[0] == "block_out" and args is not None and args.block_structure is not None:
            return _blocks(name, values, 0, args.block_structure[0], (first, count, n))
        return values

    bias: Any = operands.bias
    return replace(
        operands,
        codes=operands.codes.narrow(0, first, count),
        scale=along(operands.scale),
        zero_point=along(operands.zero_point),
        bias=None if bias is None else bias.narrow(0, first, count),
    )


def _inputs(
    name: str, operands: Operands, axes: tuple[str, ...], facts: LayerFacts, k: int, first: int, count: int
) -> tuple[Operands, LayerFacts]:
    args = facts.weights
    codes = operands.codes.narrow(1, first, count)
    last = axes[1] if len(axes) > 1 else ""
    if last == "block_in" and args is not None and args.block_structure is not None:
        width = args.block_structure[1]
        scale = _blocks(name, operands.scale, 1, width, (first, count, k))
        zero = operands.zero_point
        zero = None if zero is None else _blocks(name, zero, 1, width, (first, count, k))
        return replace(operands, codes=codes, scale=scale, zero_point=zero), facts
    if last != "group" or args is None or not args.group_size:
        return replace(operands, codes=codes), facts
    size = args.group_size
    if operands.g_idx is None and first % size == 0 and count % size == 0:
        part = (first // size, count // size)
        zero = operands.zero_point
        return replace(
            operands,
            codes=codes,
            scale=operands.scale.narrow(1, *part),
            zero_point=None if zero is None else zero.narrow(1, *part),
        ), facts
    if args.type != "int":
        raise _straddles(name, f"groups of {size}", (first, count, k))
    index = operands.g_idx
    if index is None:
        index = torch.arange(k, dtype=torch.int32, device=codes.device) // size
    return _ordered(replace(operands, codes=codes), facts, args, index.narrow(0, first, count))


def _ordered(operands: Operands, facts: LayerFacts, args: QuantArgs, index: Tensor) -> tuple[Operands, LayerFacts]:
    """Columns that belong to groups through an index, of which a rank may have any number of each group.

    Kernels take K / group_size for the number of groups, so that the group is made as small as the rank's groups are
    many, and groups without columns fill up what is missing.
    """
    used, local = torch.unique(index.long(), return_inverse=True)
    count = index.numel()
    size = next(d for d in range(count // used.numel(), 0, -1) if count % d == 0)
    missing = count // size - used.numel()

    def take(values: Tensor, filler: float) -> Tensor:
        kept = values.index_select(1, used)
        rest = torch.full((values.shape[0], missing), filler, device=values.device).to(values.dtype)
        return torch.cat([kept, rest], dim=1)

    zero = operands.zero_point
    cut_operands = replace(
        operands,
        scale=take(operands.scale, 1.0),
        zero_point=None if zero is None else take(zero, 0.0),
        g_idx=local.to(torch.int32),
    )
    weights = args.model_copy(update={"group_size": size, "actorder": "group"})
    return cut_operands, replace(facts, weights=weights)


def _blocks(name: str, values: Tensor, axis: int, size: int, part: tuple[int, int, int]) -> Tensor:
    first, count, whole = part
    if first % size or ((first + count) % size and first + count != whole):
        raise _straddles(name, f"blocks of {size}", part)
    return values.narrow(axis, first // size, -(-count // size))


def _straddles(name: str, what: str, part: tuple[int, int, int]) -> CheckpointError:
    first, count, whole = part
    return CheckpointError(
        f"cannot be split between ranks: {first} to {first + count} of {whole} divides {what} that share one scale",
        layer=name, field="tensor_parallel", observed=f"{first} to {first + count}", required=f"whole {what}",
        remedy="choose a smaller tensor parallel size",
        code="QD659",
    )  # fmt: skip
