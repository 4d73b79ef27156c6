"""The matrix product of the reference forward: weights dequantized a few rows at a time, in fp32 (fp64 for fp64 x)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ...numerics.activations import quantize_outputs, seen_inputs
from ...numerics.weights import dequantize
from ...registry.args import QuantArgs
from ...registry.facts import LayerFacts
from ...registry.operands import Operands
from ..stored import weights_of

#: values dequantized at once: 16 MB of fp32, so a layer never exists whole in fp32
CHUNK = 1 << 22


def compute_dtype(x: Tensor) -> torch.dtype:
    """fp32 holds what 16-bit inputs need with room to spare; fp64 inputs ask for an fp64 answer."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def quantized_linear(x: Tensor, operands: Operands, layer: LayerFacts) -> Tensor:
    """x [..., K] to [..., N]: inputs quantized as the layer says, product and scales in fp32 (fp64 for fp64 x), bias
    added, outputs quantized as the layer says, and one rounding to x's dtype at the end."""
    seen, factor = seen_inputs(x, layer.inputs, operands.input_scale, operands.input_zero_point, compute_dtype(x))
    y = product(seen, operands, weights_of(layer))
    if factor is not None:
        y *= factor
    if layer.outputs is None:
        return finish(y, operands, x.dtype)
    y = finish(y, operands, y.dtype)
    return quantize_outputs(y, layer.outputs, operands.output_scale, operands.output_zero_point).to(x.dtype)


def product(x: Tensor, operands: Operands, args: QuantArgs) -> Tensor:
    """x [..., K], in fp32 or fp64, times the dequantized weight: [..., N] in x's dtype."""
    parts = [F.linear(x, dequantize_rows(operands, args, rows, x.dtype)) for rows in chunks(operands, args)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def finish(y: Tensor, operands: Operands, dtype: torch.dtype) -> Tensor:
    """Add the bias before the one rounding to the dtype of the activations."""
    return (y if operands.bias is None else y + operands.bias.to(y.dtype)).to(dtype)


def chunks(operands: Operands, args: QuantArgs) -> Iterator[slice]:
    """Ranges of output rows of about ``CHUNK`` values, on borders of blocks."""
    n, k = operands.codes.shape
    unit = args.block_structure[0] if args.block_structure else 1
    step = max(1, CHUNK // (k * unit)) * unit
    for start in range(0, n, step):
        yield slice(start, min(n, start + step))


def dequantize_rows(operands: Operands, args: QuantArgs, rows: slice, dtype: torch.dtype | None) -> Tensor:
    """Rows of the weight, [rows, K]; ``dtype`` as in :func:`..numerics.weights.dequantize`."""
    scale_rows = rows
    if args.strategy == "tensor":
        scale_rows = slice(None)
    elif args.block_structure:
        unit = args.block_structure[0]
        scale_rows = slice(rows.start // unit, -(-rows.stop // unit))
    zero_point = None if operands.zero_point is None else operands.zero_point[scale_rows]
    return dequantize(
        operands.codes[rows], operands.scale[scale_rows], zero_point, args, g_idx=operands.g_idx, dtype=dtype
    )
