"""Checks of stored values and the conversions that go with them. Every error is a ``CheckpointError`` that names the
layer and the tensor: a NaN or zero scale would otherwise surface as wrong text, far from its cause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...registry.args import QuantArgs
from ...registry.errors import CheckpointError
from ...registry.facts import LayerFacts
from ...registry.operands import Operands
from ...registry.scheme import LayerShape
from ..stored import input_tensors, output_tensors


def take(tensors: Mapping[str, Any], name: str, layer: str) -> Tensor:
    tensor = tensors.get(name)
    if not isinstance(tensor, Tensor):
        raise CheckpointError(
            f"{name} is missing",
            layer=layer,
            field=name,
            observed=", ".join(sorted(tensors)) or "no tensors",
            required=name,
            code="QD654",
        )
    return tensor


def take_matrix(
    tensors: Mapping[str, Any], name: str, layer: str, shape: LayerShape, dtypes: set[torch.dtype]
) -> Tensor:
    """The unpacked weight, [N, K] in one of ``dtypes``."""
    tensor = take(tensors, name, layer)
    if tensor.dtype not in dtypes or tuple(tensor.shape) != (shape.n, shape.k):
        raise CheckpointError(
            f"{name} has the wrong shape or dtype",
            layer=layer,
            field=name,
            observed=f"{tensor.dtype} {list(tensor.shape)}",
            required=f"{' or '.join(sorted(map(str, dtypes)))} {[shape.n, shape.k]}",
            code="QD656",
        )
    return tensor


def take_scale(tensors: Mapping[str, Any], name: str, layer: str, shape: tuple[int, ...]) -> Tensor:
    """A scale, viewed as ``shape``: finite and above zero everywhere."""
    scale = take(tensors, name, layer)
    # NaN fails the first comparison, so one pass finds every unusable value
    usable = (scale > 0) & (scale < torch.inf)
    if not bool(usable.all()):
        raise _bad_scale(scale, usable, name, layer)
    return _reshape(scale, name, layer, shape)


def take_zero_point(tensors: Mapping[str, Any], name: str, layer: str, shape: tuple[int, ...], bits: int) -> Tensor:
    """An unpacked zero point as int8 of ``shape``, whatever small-integer type the writer chose."""
    stored = take(tensors, name, layer)
    half = 1 << (bits - 1)
    codes = stored.to(torch.float32)
    usable = (codes >= -half) & (codes < half) & (codes == codes.round())
    if not bool(usable.all()):
        worst = codes[~usable].flatten()[0].item()
        raise CheckpointError(
            f"{name} holds {int((~usable).sum())} values that are no int{bits} zero point",
            layer=layer,
            field=name,
            observed=worst,
            required=f"integers {-half}..{half - 1}",
            code="QD658",
        )
    return _reshape(stored.to(torch.int8), name, layer, shape)


def take_static(
    tensors: Mapping[str, Any], side: str, layer: str, args: QuantArgs | None
) -> tuple[Tensor | None, Tensor | None]:
    """Scale [1] and zero point int8 [1] of static inputs or outputs (``side``), ``None`` for what is not stored."""
    if args is None or args.dynamic:
        return None, None
    scale = take_scale(tensors, f"{side}_scale", layer, (1,))
    if args.symmetric:
        return scale, None
    return scale, take_zero_point(tensors, f"{side}_zero_point", layer, (1,), args.num_bits)


def check_codes(codes: Tensor, name: str, layer: str, bits: int) -> None:
    """Unpacked int8 codes must lie in the range of their bits."""
    if bits >= 8 or not codes.numel():
        return
    half = 1 << (bits - 1)
    low, high = (int(value) for value in torch.aminmax(codes))
    if low < -half or high >= half:
        raise CheckpointError(
            f"{name} holds values outside int{bits}",
            layer=layer,
            field=name,
            observed=f"{low}..{high}",
            required=f"{-half}..{half - 1}",
            code="QD658",
        )


def extras(tensors: Mapping[str, Any], known: frozenset[str], layer: LayerFacts | None = None) -> dict[str, Any]:
    """Tensors that saving must write back though no formula uses them. Those of static inputs and outputs of ``layer``
    are used, those of other inputs and outputs are strangers."""
    if layer is not None:
        known = known | {tensor.name for tensor in (*input_tensors(layer.inputs), *output_tensors(layer.outputs))}
    return {name: tensor for name, tensor in tensors.items() if name not in known}


def stored_bias(operands: Operands) -> dict[str, Any]:
    return {} if operands.bias is None else {"bias": operands.bias}


def stored_activations(operands: Operands) -> dict[str, Any]:
    """The scales and zero points of static inputs and outputs, under the names they are stored by."""
    named = {
        "input_scale": operands.input_scale,
        "input_zero_point": operands.input_zero_point,
        "output_scale": operands.output_scale,
        "output_zero_point": operands.output_zero_point,
    }
    return {name: tensor for name, tensor in named.items() if tensor is not None}


def _reshape(tensor: Tensor, name: str, layer: str, shape: tuple[int, ...]) -> Tensor:
    if tensor.numel() != torch.Size(shape).numel():
        raise CheckpointError(
            f"{name} has the wrong shape",
            layer=layer,
            field=name,
            observed=list(tensor.shape),
            required=list(shape),
            code="QD656",
        )
    return tensor.reshape(shape)


def _bad_scale(scale: Tensor, usable: Tensor, name: str, layer: str) -> CheckpointError:
    value = float(scale[~usable].flatten()[0])
    kind = (
        "NaN" if value != value else "infinite" if abs(value) == float("inf") else "zero" if value == 0 else "negative"
    )
    where = [int(i) for i in (~usable).nonzero()[0]]
    return CheckpointError(
        f"{name} holds {int((~usable).sum())} unusable values, the first {kind} at {where}",
        layer=layer,
        field=name,
        observed=value,
        required="finite and above zero",
        code="QD658",
    )
