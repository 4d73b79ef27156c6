"""Declarations that schemes share: scales, zero points and input parameters by strategy, and the reading of headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..registry.args import QuantArgs
from ..registry.errors import CheckpointError
from ..registry.scheme import LayerShape, StoredTensor, TensorInfo

FLOATS = frozenset({"BF16", "F16", "F32"})
INT8 = frozenset({"I8"})
INT32 = frozenset({"I32"})
#: unpacked zero points are int8; ``zp_dtype`` lets a writer choose another type for the same small integers
ZERO_POINTS = frozenset({"I8", "I16", "I32", "I64", *FLOATS})
#: one value, as writers spell it
ONE: tuple[tuple[int, ...], ...] = ((1,), ())


def scale_grid(args: QuantArgs, shape: LayerShape) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]:
    """The shapes and axes of the weight's scale: [1] tensor, [N, 1] channel, [N, K/g] group, [N/bn, K/bk] block."""
    n, k = shape.n, shape.k
    if args.strategy == "tensor":
        return ONE, ("",)
    if args.strategy == "channel":
        return ((n, 1),), ("out", "")
    if args.strategy == "group" and args.group_size:
        return ((n, k // args.group_size),), ("out", "group")
    if args.strategy == "block" and args.block_structure:
        rows, columns = args.block_structure
        return ((-(-n // rows), -(-k // columns)),), ("block_out", "block_in")
    raise ValueError(f"weights have strategy tensor, channel, group or block, not {args.strategy}")


def weight_scale(args: QuantArgs, shape: LayerShape) -> StoredTensor:
    shapes, axes = scale_grid(args, shape)
    return StoredTensor("weight_scale", shapes, FLOATS, axes)


def input_tensors(args: QuantArgs | None) -> tuple[StoredTensor, ...]:
    """What is stored for the inputs: nothing when they are dynamic or left alone."""
    return _activation_tensors("input", args)


def output_tensors(args: QuantArgs | None) -> tuple[StoredTensor, ...]:
    """What is stored for the outputs, on the same terms."""
    return _activation_tensors("output", args)


def _activation_tensors(side: str, args: QuantArgs | None) -> tuple[StoredTensor, ...]:
    if args is None or args.dynamic:
        return ()
    scale = StoredTensor(f"{side}_scale", ONE, FLOATS, ("",))
    if args.symmetric:
        return (scale,)
    return (scale, StoredTensor(f"{side}_zero_point", ONE, ZERO_POINTS, ("",)))


def shared_columns(args: QuantArgs, shape: LayerShape | None) -> int | None:
    """Columns of K that share a scale: the group, the block's width, or all of K."""
    if args.strategy == "group":
        return args.group_size
    if args.strategy == "block" and args.block_structure:
        return args.block_structure[1]
    return None if shape is None else shape.k


def two_dimensions(name: str, tensor: str, tensors: Mapping[str, TensorInfo]) -> tuple[int, int]:
    """The shape of a matrix. Raises ``CheckpointError`` when it is missing, empty or no matrix."""
    info = tensors.get(tensor)
    if info is None:
        raise CheckpointError(
            f"{tensor} is missing",
            layer=name,
            field=tensor,
            observed=", ".join(sorted(tensors)) or "no tensors",
            required=tensor,
            code="QD654",
        )
    if len(info.shape) != 2 or 0 in info.shape:
        raise CheckpointError(
            f"{tensor} is {'empty' if 0 in info.shape else 'not a matrix'}",
            layer=name,
            field=tensor,
            observed=list(info.shape),
            required="[N, K]",
            code="QD656",
        )
    return info.shape[0], info.shape[1]


def check_groups(name: str, args: QuantArgs, k: int) -> None:
    """Raises ``CheckpointError`` unless the group size divides K."""
    if args.strategy == "group" and args.group_size and k % args.group_size:
        raise CheckpointError(
            f"K = {k} is not divisible by the group size {args.group_size}",
            layer=name,
            field="weights.group_size",
            observed=f"K {k}, group_size {args.group_size}",
            required="K % group_size == 0",
            remedy="compressed-tensors cannot decompress it either: quantize with a group size that divides K",
            code="QD657",
        )


def weights_of(layer: Any) -> QuantArgs:
    """The weight args of facts that a scheme for quantized weights was given."""
    args: QuantArgs | None = layer.weights
    if args is None:
        raise ValueError("a scheme for quantized weights needs weight args")
    return args
