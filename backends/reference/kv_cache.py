"""``reference/kv_cache``: keys, values and queries to what a quantized cache stores, and back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .linear import ReferenceKernel


class ReferenceKVCache(ReferenceKernel):
    """One attention module's cache. It holds the scales only: what is cached is the caller's."""

    def quantize(self, part: str, states: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """``part`` is ``"k"``, ``"v"`` or ``"q"``; states [..., heads, length, head_dim] to float8_e4m3fn alike."""
        codes: Tensor = self.numerics.quantize(part, states, self.unpack(state))
        return codes

    def dequantize(self, part: str, codes: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """The inverse, in the dtype of the activations."""
        dtype: torch.dtype = getattr(torch, self.spec.dtype)
        states: Tensor = self.numerics.dequantize(part, codes, self.unpack(state), dtype)
        return states
