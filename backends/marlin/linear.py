"""``marlin/*``: 16-bit x times weights in Marlin's layout, by the ops of whichever provider is installed.

No GPU has run this yet: layouts are tested bit by bit against recorded ones, and the products by ops that compute the
true result from the layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ...registry.errors import QuantDispatchError
from ...registry.facts import KernelSpec
from ...registry.operands import Operands
from ..device_linear import DeviceLinear
from . import columns as ordering
from . import forms, layout, op
from .providers import Weight, adapter
from .scales import Held, hold_scales, spread, unheld_scales

#: int32 locks for each multiprocessor, as the providers' own callers make them
LOCKS = 4


class MarlinLinear(DeviceLinear):
    """State: the fields of :class:`~.providers.Weight` (``codes``, ``scales``, ``zeros``, ``whole``, ``fused_bias``,
    ``locks``); ``columns``, ``owners`` and ``g_idx`` with activation ordering; ``rest``, what the op's factor of all
    lacks for its dtype; and of ``scale``, ``zero_point``, ``global_scale`` and ``shift`` what the layout cannot give
    back."""

    provider: ClassVar[str]

    def __init__(self, spec: KernelSpec) -> None:
        super().__init__(spec)
        self.form = forms.form_of(self.weights, spec.scheme)
        adapter(self.provider)  # a provider whose ops are not as recorded is an error now and not in the first call

    def adds_bias(self, state: Mapping[str, Tensor]) -> bool:
        return "fused_bias" in state

    # --- state

    def pack(self, operands: Operands) -> dict[str, Tensor]:
        ops, form = adapter(self.provider), self.form
        state = self.keep(operands)
        codes = forms.unsigned(operands.codes, form.kind)
        scales = spread(operands.scale, self.weights, self.n)
        zeros = None if operands.zero_point is None else spread(operands.zero_point, self.weights, self.n)
        if operands.g_idx is not None:
            assert form.group is not None
            places, owners = ordering.sorted_columns(operands.g_idx, form.group, scales.shape[0])
            state |= {"g_idx": operands.g_idx, "columns": places}
            codes = F.pad(codes, (0, 1)).index_select(1, places)
            regrouped = not torch.equal(owners, torch.arange(scales.shape[0], device=owners.device))
            if regrouped:
                state["scale"] = operands.scale
                scales = scales.index_select(0, owners)
        n, k = layout.padded_shape(self.n, codes.shape[1], form.group)
        groups = 1 if form.group is None else k // form.group
        state["codes"] = layout.pack_weight(layout.pad(codes, n, k), form.kind.bits)
        held = hold_scales(layout.pad(scales, groups, n), form, self.dtype, operands.global_scale, ops.wide_factor)
        state |= self._of_scales(operands, held, scales.shape[0])
        if zeros is not None:
            unsigned = layout.pad(zeros.view(torch.uint8) + 8 & 15, groups, n)
            state["zeros"] = layout.pack_zero_points(unsigned, form.kind.bits)
        if operands.bias is not None and ops.adds_bias and operands.bias.dtype == self.dtype:
            state["fused_bias"] = layout.permute_bias(F.pad(operands.bias, (0, n - self.n)))
        state["locks"] = torch.zeros(LOCKS * multiprocessors(codes.device), dtype=torch.int32, device=codes.device)
        return state

    def _of_scales(self, operands: Operands, held: Held, groups: int) -> dict[str, Tensor]:
        """The entries that hold scales, and the stored ones where the layout does not give them back."""
        state = {"scales": held.scales, **held.more}
        if operands.global_scale is not None:
            state["global_scale"] = operands.global_scale
        back = self._stored_scale(state, groups)
        same = back is not None and back.dtype == operands.scale.dtype and back.shape == operands.scale.shape
        if not same or not torch.equal(_bits(back), _bits(operands.scale)):
            self._check_lost(operands, back)
            state["scale"] = operands.scale
        return state

    def _stored_scale(self, state: Mapping[str, Tensor], groups: int) -> Tensor | None:
        """The stored scale [N, G], out of the layout; ``None`` where the strategy stores another grid."""
        if self.weights.strategy not in ("channel", "group", "tensor_group") or "columns" in state:
            return None
        return unheld_scales(state, self.form)[:groups, : self.n].t().contiguous()

    def _check_lost(self, operands: Operands, back: Tensor | None) -> None:
        """Of nvfp4: a scale that is too small for the layout is zero there, which only weights of zero may have."""
        if self.form.scale != "nv" or back is None:
            return
        lost = (back.float() == 0) & (operands.scale.float() != 0)
        used = (operands.codes.float() != 0).view(*back.shape, -1).any(-1)
        if bool((lost & used).any()):
            raise QuantDispatchError(
                "some scales are so small beside the largest that Marlin's bf16 kernels take them for zero",
                field="weight_scale", observed=f"{int((lost & used).sum())} of {lost.numel()} groups",
                required="scales within a factor of 2^14 of each other", remedy="choose another backend, or float16",
                code="QD803",
            )  # fmt: skip

    def unpack(self, state: Mapping[str, Tensor]) -> Operands:
        octets = layout.unpack_weight(state["codes"], self.form.kind.bits)[: self.n]
        places = state.get("columns")
        octets = octets[:, : self.k] if places is None else octets[:, : places.shape[0]]
        if places is not None:
            octets = ordering.restore(octets, places, self.k)
        scale = state.get("scale")
        if scale is None:
            scale = unheld_scales(state, self.form)[: self._groups(state), : self.n].t().contiguous()
        zero_point = None
        if "zeros" in state:
            unsigned = layout.unpack_zero_points(state["zeros"], self.form.kind.bits)
            zero_point = (unsigned[: scale.shape[1], : scale.shape[0]] - 8).view(torch.int8).t().contiguous()
        parts = {"scale": scale, "zero_point": zero_point, "g_idx": state.get("g_idx")}
        codes = forms.signed(octets.contiguous(), self.form.kind)
        return self.restore(state, codes=codes, global_scale=state.get("global_scale"), **parts)

    def _groups(self, state: Mapping[str, Tensor]) -> int:
        return 1 if self.form.group is None else -(-self.k // self.form.group)

    # --- the product

    def weight(self, state: Mapping[str, Tensor]) -> Weight:
        codes = state["codes"]
        n, k = codes.shape[1] * 32 // self.form.kind.bits // layout.TILE, codes.shape[0] * layout.TILE
        names = ("scales", "zeros", "whole", "fused_bias")
        return Weight(self.form.kind, codes, *(state.get(name) for name in names), state["locks"], n, k)  # type: ignore

    def forward(self, rows: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        weight = self.weight(state)
        x = self.prepared(rows, state, weight.k)
        if torch.compiler.is_compiling():
            y = op.gemm(x, weight, self.provider)
        else:
            y = adapter(self.provider).gemm(x, weight)
        y = y[:, : self.n]
        rest = state.get("rest")
        return y if rest is None else y.float() * rest

    def prepared(self, rows: Tensor, state: Mapping[str, Tensor], k: int) -> Tensor:
        """Rows of x in the order of the columns, filled up with zeros to ``k``."""
        places = state.get("columns")
        x = rows if places is None else ordering.gather(rows, places)
        return F.pad(x, (0, k - x.shape[1])) if x.shape[1] != k else x

    @staticmethod
    def fuse(first: Sequence[Sequence[Any]], last: Sequence[Any], activation: str) -> Any:
        """All experts of a layer in three calls of the provider's MoE op; see :mod:`.moe`."""
        from .moe import fuse

        return fuse(first, last, activation)


class VllmMarlinLinear(MarlinLinear):
    provider = "vllm"


class SglangMarlinLinear(MarlinLinear):
    provider = "sglang"


def multiprocessors(device: torch.device) -> int:
    """Of a GPU; 1 elsewhere, where there is none to lock out."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1


def _bits(values: Tensor | None) -> Tensor:
    assert values is not None
    return values.reshape(-1).contiguous().view(torch.uint8)
