"""Routed int4 experts with zero points on SGLang's Marlin kernel.

The kernel takes zero points; what is wrong around it in SGLang 0.5.23 is that its loader leaves them untransposed and
that they are then taken for AWQ's, whose nibbles have another order. No GPU has verified the forward pass: what is
tested is every tensor up to the call of the kernel.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from sglang.srt.layers.quantization.compressed_tensors.schemes import CompressedTensorsWNA16MoE
from sglang.srt.layers.quantization.marlin_utils import marlin_zero_points
from torch import Tensor

from quantdispatch.registry.resolution import Resolution

from . import limits

_BITS = 4
_ZERO_POINTS = ("w13_weight_zero_point", "w2_weight_zero_point")


def suits(layer: Resolution, hidden: int, inner: int, activation: Any) -> bool:
    """Is there a Marlin kernel for experts like this? ``hidden``, ``inner``: their sizes on one rank."""
    args = layer.weights
    return (
        args is not None
        and layer.format == "pack-quantized"
        and layer.inputs is None
        and layer.outputs is None
        and (args.type, args.num_bits, args.symmetric, args.dynamic) == ("int", _BITS, False, False)
        and args.actorder in (None, "weight", "static")
        and args.strategy in ("channel", "group")
        and limits.of_experts("CompressedTensorsWNA16MoE", args, hidden, inner, activation) is None
    )


class ZeroPointMarlinMoE(CompressedTensorsWNA16MoE):  # type: ignore[misc]
    """SGLang's scheme, with zero points that are loaded and laid out as the kernel reads them."""

    def create_weights(self, layer: Any, *args: Any, **kwargs: Any) -> None:
        super().create_weights(layer, *args, **kwargs)
        # SGLang transposes by the name of the class, and so nothing of this one
        layer._weight_loader_impl = partial(_transposed, layer._weight_loader_impl)

    def process_weights_after_loading(self, layer: Any) -> None:
        if getattr(layer, "is_marlin_converted", False):
            return
        self.sym = True  # for as long as all but the zero points is laid out
        try:
            super().process_weights_after_loading(layer)
        finally:
            self.sym = False
        for name in _ZERO_POINTS:
            parameter = getattr(layer, name)
            parameter.data.copy_(_laid_out(parameter.data))


def _transposed(load: Any, *, loaded_weight: Tensor, **others: Any) -> None:
    load(loaded_weight=loaded_weight.t().contiguous(), **others)


def _laid_out(packed: Tensor) -> Tensor:
    """int32 [E, G, N / 8], packed in order along N, to the order in which Marlin's tiles read them."""
    shifts = torch.arange(0, 32, _BITS, dtype=torch.int32, device=packed.device)
    codes = (packed.unsqueeze(-1) >> shifts) & (2**_BITS - 1)
    experts, groups, words = packed.shape
    columns = words * (32 // _BITS)
    tables = codes.reshape(experts, groups, columns)
    return torch.stack([marlin_zero_points(table, groups, columns, _BITS) for table in tables])
