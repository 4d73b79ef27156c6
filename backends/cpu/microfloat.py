"""``cpu/microfloat``: fp4, fp6 and fp8 weights in small groups, their scales exponents (mx) or e4m3 (nvfp4).

Weights stay packed and are decoded in chunks in every call. A value times its scale is exact, in bf16 too: an mx scale
is a power of two, and e4m3 times e2m1 has six bits. nvfp4's global scale divides the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ...numerics.microscaling import fake_quantize, is_mx, is_nvfp4
from ...numerics.rows import select_rows
from ...registry.facts import KernelSpec
from ...registry.operands import Operands
from .activations import seen_inputs
from .chunked import FP8
from .dequant import MANY_ROWS, nan_rows
from .isa import NATIVE_BF16
from .linear import CpuLinear
from .microfloat_planes import FP4, FP6, pack_floats, unpack_floats
from .ops import chunked_mm


class MicrofloatLinear(CpuLinear):
    """State: ``codes`` int16 [N, K * bits / 16] (fp4, fp6) or int8 [N, K] (the bits of fp8); ``scale`` [N, G] and
    ``global_scale`` as stored, e4m3 as uint8; ``nan_rows`` [N], 0 or NaN, where fp8 weights hold a NaN."""

    def __init__(self, spec: KernelSpec) -> None:
        super().__init__(spec)
        self.mode = {4: FP4, 6: FP6, 8: FP8}[self.weights.num_bits]
        self.nv = is_nvfp4(self.weights)
        self.group = self.weights.group_size or self.k
        args = self.inputs
        # fp8 in groups of 32 that does not say what its scales are: float ones come beside fp4 weights only
        grouped = args is not None and (is_nvfp4(args) or is_mx(args) or self.weights.num_bits != 4)
        self.small_inputs = args if grouped else None

    def pack(self, operands: Operands) -> dict[str, Tensor]:
        # float8 tensors cannot be pickled
        state = self.keep(operands) | {"scale": operands.scale.view(torch.uint8) if self.nv else operands.scale}
        if operands.global_scale is not None:
            state["global_scale"] = operands.global_scale
        if self.mode == FP8:
            state["codes"] = operands.codes.contiguous().view(torch.int8)
            state |= nan_rows(state["codes"])
        else:
            state["codes"] = pack_floats(operands.codes, self.mode)
        return state

    def unpack(self, state: Mapping[str, Tensor]) -> Operands:
        return self._decoded(self._stored(state))

    def rows(self, index: Tensor, state: Mapping[str, Tensor]) -> Operands:
        """The layer with only the rows ``index`` [R] of its N, for an embedding that shares the weight."""
        return self._decoded(select_rows(self._stored(state), self.weights, index))

    def _stored(self, state: Mapping[str, Tensor]) -> Operands:
        parts = {"codes": state["codes"], "scale": self._scale(state), "global_scale": state.get("global_scale")}
        return self.restore(state, **parts)

    def _scale(self, state: Mapping[str, Tensor]) -> Tensor:
        return state["scale"].view(torch.float8_e4m3fn) if self.nv else state["scale"]

    def _decoded(self, stored: Operands) -> Operands:
        codes = stored.codes
        if self.mode == FP8:
            return replace(stored, codes=codes.view(torch.float8_e4m3fn))
        return replace(stored, codes=unpack_floats(codes, self.mode, self.k))

    def forward(self, rows: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        x_scale = None
        if self.small_inputs is not None:
            mx = not is_nvfp4(self.small_inputs)
            rows = fake_quantize(rows, self.small_inputs, state.get("input_global_scale"), mx=mx)
        else:
            rows, x_scale = seen_inputs(rows, self.inputs, None, None)
        scale = self._scale(state)
        # float scales (an mx weight in a format that knows no exponents) may be anything
        narrow = rows.shape[0] >= MANY_ROWS and NATIVE_BF16 and self._exact(scale)
        rows = rows.bfloat16() if narrow else rows.float()
        y = chunked_mm(rows, state["codes"], scale, None, None, self.mode, 1, self.group)
        if x_scale is not None:
            y = y * x_scale
        if (overall := state.get("global_scale")) is not None:
            y = y / overall
        return y if (nan := state.get("nan_rows")) is None else y + nan

    def _exact(self, scale: Tensor) -> bool:
        """Are x and the weight exact in bf16?"""
        own_scales = self.inputs is not None and self.small_inputs is None and self.inputs.strategy == "group"
        return self.dtype == torch.bfloat16 and scale.element_size() == 1 and not own_scales
