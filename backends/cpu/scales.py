"""Stored scales to fp32, whatever they are stored as."""

from __future__ import annotations

import torch
from torch import Tensor

from ...numerics.microscaling import mx_scale
from .scratch import scratch

with torch.inference_mode(False):
    _BYTES = torch.arange(256, dtype=torch.int16, device="cpu").to(torch.uint8)
    _TABLES = {torch.uint8: mx_scale(_BYTES), torch.float8_e4m3fn: _BYTES.view(torch.float8_e4m3fn).float()}


def scales_to_float(scale: Tensor) -> Tensor:
    """Scales [N, G] in fp32: of uint8, which are exponents of two with bias 127, of float8_e4m3fn, and of wider floats.

    Valid until the next call. Bytes are looked up: that is two calls where conversion by bits takes five to nine.
    """
    table = _TABLES.get(scale.dtype)
    if table is None:
        return scale.float()
    index = scratch("index", tuple(scale.shape), torch.int32).copy_(scale.view(torch.uint8))
    out = scratch("scale", (scale.numel(),), torch.float32)
    torch.index_select(table, 0, index.view(-1), out=out)
    return out.view(scale.shape)
