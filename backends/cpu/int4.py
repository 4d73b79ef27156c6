"""``cpu/int4_torch``: 2- to 4-bit weights through torch's int4 op, w = (u - 8) * scale + zero.

Codes of fewer than 4 bits fit the 16 values. The op takes groups of 32, 64, 128 or 256 columns: other multiples of 32
and whole rows are cut into such groups by repeating scales. Int4, int8 and float8 activations go in as codes, exact in
bf16, and are scaled afterwards. Activation ordering sorts the columns by group once, and x in each call; groups of
unequal size are filled up with columns that meet a zero in x.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ...registry.facts import KernelSpec
from ...registry.operands import Operands
from . import int4_layout
from .activations import seen_inputs
from .linear import CpuLinear
from .ops import int4_rows

#: columns a group of the op may have, best first: larger groups mean fewer scales
GROUPS = (256, 128, 64, 32)


class Int4Linear(CpuLinear):
    """State: ``packed`` uint8 [N, K/2] (opaque), ``scale_zero`` bf16 [K/group, N, 2], ``scale`` where it is not bf16,
    ``zero_point`` where it cannot be told from ``scale_zero``, ``g_idx`` and ``columns`` with activation ordering.

    With unequal groups K is larger there: each group is filled up to a multiple of 32.
    """

    def __init__(self, spec: KernelSpec) -> None:
        super().__init__(spec)
        self.width = self.k if self.weights.strategy != "group" else self.weights.group_size or self.k

    def pack(self, operands: Operands) -> dict[str, Tensor]:
        codes, scale, zero_point = operands.codes, operands.scale, operands.zero_point
        state = self.keep(operands)
        width = self.width
        if operands.g_idx is not None:
            columns, width = _sorted_columns(operands.g_idx, scale.shape[1])
            state |= {"g_idx": operands.g_idx, "columns": columns}
            codes = F.pad(codes, (0, 1)).index_select(1, columns)
        state["packed"] = int4_layout.pack(codes.contiguous().view(torch.uint8) + 8)
        narrow = scale.to(torch.bfloat16)
        zero = torch.zeros_like(narrow) if zero_point is None else -(zero_point * narrow)
        pairs = torch.stack([narrow, zero], dim=-1).expand(self.n, -1, 2)
        group = next(g for g in GROUPS if width % g == 0)
        state["scale_zero"] = pairs.transpose(0, 1).repeat_interleave(width // group, dim=0).contiguous()
        if scale.dtype != torch.bfloat16:
            state["scale"] = scale
        if zero_point is not None and not torch.equal(self._zero_point(narrow, zero), zero_point):
            state["zero_point"] = zero_point
        return state

    def unpack(self, state: Mapping[str, Tensor]) -> Operands:
        return self._operands(int4_layout.unpack(state["packed"]), state)

    def rows(self, index: Tensor, state: Mapping[str, Tensor]) -> Operands:
        """The layer with only the rows ``index`` [R] of its N, for an embedding that shares the weight."""
        chosen = dict(state)
        chosen["scale_zero"] = state["scale_zero"].index_select(1, index)
        for name in ("scale", "zero_point"):
            if name in state and state[name].shape[0] == self.n:
                chosen[name] = state[name].index_select(0, index)
        return self._operands(int4_rows(index, state["packed"]), chosen)

    def _operands(self, values: Tensor, state: Mapping[str, Tensor]) -> Operands:
        codes = values.sub_(8).view(torch.int8)
        columns, g_idx = state.get("columns"), state.get("g_idx")
        groups = codes.shape[1] // self.width
        if columns is not None and g_idx is not None:
            real = columns < self.k
            restored = torch.empty(codes.shape[0], self.k, dtype=torch.int8, device="cpu")
            restored[:, columns[real].to(torch.long)] = codes[:, real]
            codes, groups = restored, self.k // self.width
        pairs = state["scale_zero"]
        pairs = pairs[:: pairs.shape[0] // groups].transpose(0, 1)
        if self.weights.strategy == "tensor":
            pairs = pairs[:1]
        narrow = pairs[..., 0].clone(memory_format=torch.contiguous_format)
        zero_point = state.get("zero_point")
        if zero_point is None and not self.weights.symmetric:
            zero_point = self._zero_point(narrow, pairs[..., 1])
        scale = state.get("scale", narrow)
        return self.restore(state, codes=codes, scale=scale, zero_point=zero_point, g_idx=g_idx)

    def stack(
        self, layers: Sequence[tuple[Int4Linear, Mapping[str, Tensor]]]
    ) -> tuple[Int4Linear, dict[str, Tensor], list[dict[str, Tensor]]] | None:
        """Layers of one input, given with their states, as one above the other: a kernel for all of their rows, its
        state, and each layer's own state as views of that one. ``None`` where they cannot be one product."""
        size = int4_layout.block_size()
        alike = all(
            impl.k == self.k and (impl.weights, impl.inputs, impl.dtype) == (self.weights, self.inputs, self.dtype)
            for impl, _ in layers
        )
        special = any(set(state) & {"columns", "input_scale", "bias"} for _, state in layers)
        if not alike or special or size is None or any(impl.n % size for impl, _ in layers):
            return None
        # outside of inference mode, so that these can be used in and out of it
        with torch.inference_mode(False), torch.no_grad():
            packed = torch.cat([state["packed"] for _, state in layers])
            scale_zero = torch.cat([state["scale_zero"] for _, state in layers], dim=1)
            parts, start = [], 0
            for impl, state in layers:
                rows = slice(start, start + impl.n)
                parts.append({**state, "packed": packed[rows], "scale_zero": scale_zero[:, rows]})
                start += impl.n
        return Int4Linear(replace(self.spec, n=start)), {"packed": packed, "scale_zero": scale_zero}, parts

    @staticmethod
    def _zero_point(narrow: Tensor, zero: Tensor) -> Tensor:
        """Zero points from what the op gets: rounding to bf16 is off by far less than half a step of up to 16."""
        ratio = -(zero.to(torch.float32) / narrow.to(torch.float32))
        return ratio.round().nan_to_num_(0.0).clamp_(-128, 127).to(torch.int8).contiguous()

    def forward(self, rows: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        if self.inputs is None:
            return self._multiply(rows, state)
        codes, scale = seen_inputs(rows, self.inputs, state.get("input_scale"), state.get("input_zero_point"))
        y = self._multiply(codes.bfloat16(), state)
        return y if scale is None else y * scale

    def _multiply(self, rows: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        columns, scale_zero = state.get("columns"), state["scale_zero"]
        if columns is not None:
            padded = columns.shape[0] > self.k
            rows = (F.pad(rows, (0, 1)) if padded else rows).index_select(1, columns)
        group = rows.shape[1] // scale_zero.shape[0]
        multiply = torch.ops.aten._weight_int4pack_mm_for_cpu
        y: Tensor = multiply(rows.contiguous(), state["packed"], group, scale_zero.contiguous())
        return y


def _sorted_columns(g_idx: Tensor, groups: int) -> tuple[Tensor, int]:
    """Column numbers in the order of their groups, each group filled up with column K to a multiple of 32; and its
    size. Groups of equal size that are a legal multiple need no filling."""
    index = g_idx.to(torch.long)
    counts = torch.bincount(index, minlength=groups)
    width = -(-max(int(counts.max()), 1) // 32) * 32
    order = torch.argsort(index, stable=True)
    columns = torch.full((groups * width,), g_idx.numel(), dtype=torch.int32, device="cpu")
    starts = counts.cumsum(0) - counts
    within = torch.arange(g_idx.numel(), device="cpu") - starts[index[order]]
    columns[index[order] * width + within] = order.to(torch.int32)
    return columns, width
