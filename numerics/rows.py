"""Single rows of a weight: an embedding looks up few rows of many, so only those are worth dequantizing."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ..registry.args import QuantArgs
from ..registry.operands import Operands


def row_args(args: QuantArgs) -> QuantArgs:
    """The args of rows that are taken one by one: blocks are as high as a row then."""
    if args.strategy != "block" or args.block_structure is None:
        return args
    return args.model_copy(update={"block_structure": (1, args.block_structure[1])})


def select_rows(operands: Operands, args: QuantArgs, rows: Tensor) -> Operands:
    """The layer with only ``rows`` (integers [R], any order, repeated or not) of its N, to be read with
    :func:`row_args` of ``args``. Raises ``IndexError`` for a row below 0 or beyond the last."""
    return replace(
        operands,
        codes=operands.codes.index_select(0, rows),
        scale=_of_rows(operands.scale, args, rows),
        zero_point=None if operands.zero_point is None else _of_rows(operands.zero_point, args, rows),
    )


def _of_rows(values: Tensor, args: QuantArgs, rows: Tensor) -> Tensor:
    """Scales or zero points [N, G], [ceil(N / bn), G] or [1, 1] to [R, G]."""
    if args.strategy == "tensor":
        return values
    if args.strategy == "block" and args.block_structure is not None:
        rows = rows // args.block_structure[0]
    return values.index_select(0, rows)
