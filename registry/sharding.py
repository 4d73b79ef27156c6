"""What tensor parallelism leaves of a layer on one rank.

Engines split the first projections of a block along their outputs, the last ones along their inputs, and keep some
whole; which is which is a convention of names. Where a layer may be cut follows from its scheme's stored tensors.
"""

from __future__ import annotations

from typing import Any

from .errors import CheckpointError, ConfigError
from .scheme import LayerShape, Scheme, StoredTensor

_ALONG_INPUTS = frozenset(
    {"o_proj", "out_proj", "down_proj", "w2", "wo", "wo_b", "fc2", "dense_4h_to_h", "c_proj", "linear_fc2", "to_out"}
)
#: too small to split, or read whole by every rank
_WHOLE = frozenset(
    {
        *("gate", "router", "shared_expert_gate", "q_a_proj", "kv_a_proj_with_mqa", "fused_qkv_a_proj_with_mqa"),
        *("wq_a", "wkv", "wkv_a", "wk", "weights_proj", "compressor", "dense"),
    }
)
_AXES = {"out": frozenset({"out", "block_out"}), "in": frozenset({"in", "group", "block_in"})}


def check_degree(degree: Any) -> int:
    """Raises ``ConfigError`` for what is not a number of ranks."""
    if type(degree) is not int or degree < 1:
        raise ConfigError(
            "tensor_parallel is a number of ranks",
            field="tensor_parallel",
            observed=degree,
            required="1 or more",
            code="QD527",
        )
    return degree


def direction(name: str) -> str | None:
    """``"out"``, ``"in"`` or ``None`` (whole), from a layer's name."""
    last = name.rpartition(".")[2]
    if last in _ALONG_INPUTS:
        return "in"
    return None if last in _WHOLE else "out"


def shard(name: str, scheme: Scheme, shape: LayerShape, degree: int) -> LayerShape:
    """The shape on one rank. Raises ``CheckpointError`` naming the largest degree that fits when it cannot be cut."""
    way = direction(name)
    if degree == 1 or way is None:
        return shape
    obstacle = _obstacle(scheme, shape, way, degree)
    if obstacle is not None:
        most = min(degree - 1, shape.k if way == "in" else shape.n)  # counting down from any degree might never end
        best = next(d for d in range(most, 0, -1) if _obstacle(scheme, shape, way, d) is None)
        raise CheckpointError(
            f"cannot be split over {degree} ranks along its {'inputs' if way == 'in' else 'outputs'}: {obstacle}",
            layer=name, field="tensor_parallel", observed=degree, required=f"at most {best} that fits",
            remedy=f"the largest tensor_parallel that fits this layer is {best}", code="QD659",
        )  # fmt: skip
    n, k = (shape.n, shape.k // degree) if way == "in" else (shape.n // degree, shape.k)
    return LayerShape(n=n, k=k, packing=shape.packing)


def _obstacle(scheme: Scheme, shape: LayerShape, way: str, degree: int) -> str | None:
    whole = shape.k if way == "in" else shape.n
    if whole % degree:
        return f"{'K' if way == 'in' else 'N'} = {whole} is not a multiple of {degree}"
    for tensor in scheme.stored(shape):
        if tensor.required and (obstacle := _uneven(tensor, way, degree)):
            return obstacle
    group = _group(scheme, way)
    if group and (whole // degree) % group:
        return f"{whole} / {degree} = {whole // degree} is not a multiple of its groups of {group}"
    return None


def _uneven(tensor: StoredTensor, way: str, degree: int) -> str | None:
    for axis, along in enumerate(tensor.axes):
        if along in _AXES[way]:
            # one scale for the whole axis is read by every rank
            if any(s[axis] % degree == 0 or (s[axis] == 1 and along != "in") for s in tensor.shapes if axis < len(s)):
                continue
            size = tensor.shapes[0][axis]
            return (
                f"{tensor.name} has {size} {'words' if tensor.packed else 'entries'} there, not a multiple of {degree}"
            )
    return None


def _group(scheme: Scheme, way: str) -> int | None:
    weights = scheme.layer.weights
    if weights is None:
        return None
    if weights.block_structure is not None:
        return weights.block_structure[0 if way == "out" else 1]
    size = weights.group_size
    return size if way == "in" and size is not None and size > 0 else None
