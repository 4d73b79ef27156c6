"""fp8 experts in grouped products: tokens sorted by expert, one call for all experts of a projection.

``_scaled_grouped_mm`` is there for sm90 only; its probe says so elsewhere. No GPU has run this yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ...numerics.activations import quantize_fp8
from . import probes

if TYPE_CHECKING:
    from .linear import ScaledMmRows

Bound = tuple["ScaledMmRows", Mapping[str, Tensor]]
Product = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
has_grouped = cache(probes.grouped_mm)


def fuse(
    first: Sequence[Sequence[Bound]], last: Sequence[Bound], activation: str
) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """One function for all experts; see ``engines.fused_experts.Fusing``. ``None`` where they cannot be computed
    together: no such op here, another activation, shapes that differ, biases, inputs with stored scales."""
    if activation not in ACTIVATIONS or not first or any(len(own) != len(first[0]) for own in first):
        return None
    parts = [[own[i] for own in first] for i in range(len(first[0]))]
    if len(parts) not in (1, 2) or not all(_alike(bound) for bound in (*parts, last)) or not has_grouped():
        return None
    return Experts([Stack(bound) for bound in parts], Stack(last), activation)


def _alike(bound: Sequence[Bound]) -> bool:
    impl, _ = bound[0]
    for other, state in bound:
        if (other.n, other.k, other.dtype, other.inputs) != (impl.n, impl.k, impl.dtype, impl.inputs):
            return False
        if "bias" in state or other.inputs is None or other.inputs.strategy != "token":
            return False
    return True


class Stack:
    """One projection of all experts, [E, N, K]; the experts' own tensors become views of it."""

    @torch.no_grad()
    def __init__(self, bound: Sequence[Bound]) -> None:
        self.impl = bound[0][0]
        codes = torch.stack([state["codes"].view(torch.uint8) for _, state in bound]).view(torch.float8_e4m3fn)
        for number, (_, state) in enumerate(bound):
            state["codes"].set_(codes[number])  # type: ignore[call-overload]
        self.codes = codes
        self.scales = torch.cat([state["wide_scale"] for _, state in bound])

    def __call__(self, x: Tensor, ends: Tensor) -> Tensor:
        """x [M, K] sorted by expert, ``ends`` int32 [E] the row after each expert's last, to bf16 [M, N]."""
        assert self.impl.inputs is not None
        q, scale = quantize_fp8(x, self.impl.inputs)
        return grouped(q, self.codes, scale.reshape(-1), self.scales, ends)


def grouped(q: Tensor, codes: Tensor, scale: Tensor, weight_scale: Tensor, ends: Tensor) -> Tensor:
    """[M, K] by [E, N, K] to bf16 [M, N]."""
    result: Tensor = torch._scaled_grouped_mm(
        q, codes.transpose(1, 2), scale, weight_scale, offs=ends, out_dtype=torch.bfloat16
    )
    return result


class Experts:
    """The function of all experts of a layer."""

    def __init__(self, first: Sequence[Stack], last: Stack, activation: str) -> None:
        self._first, self._last, self._activation = list(first), last, ACTIVATIONS[activation]
        self._count = last.codes.shape[0]

    def __call__(self, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        """x [T, H], int [T, k], [T, k] to [T, H]: the weighted sum over the chosen experts, added up in fp32. What is
        no expert's index goes to expert 0 with weight zero."""
        tokens, chosen = index.shape
        here = (index >= 0) & (index < self._count)
        owner = torch.where(here, index, torch.zeros_like(index)).long().reshape(-1)
        order = owner.argsort(stable=True)
        counts = torch.zeros(self._count, dtype=torch.int32, device=x.device)
        counts.scatter_add_(0, owner, torch.ones_like(owner, dtype=torch.int32))
        ends = counts.cumsum(0, dtype=torch.int32)
        seen = x[order // chosen]
        parts = [stack(seen, ends) for stack in self._first]
        hidden = self._activation(parts[0])
        if len(parts) == 2:
            hidden = hidden * parts[1]
        share = torch.where(here, weights.float(), torch.zeros((), device=x.device)).reshape(-1)[order]
        y = self._last(hidden, ends).float() * share.unsqueeze(1)
        total = torch.zeros(tokens, y.shape[1], dtype=torch.float32, device=x.device)
        return total.index_add_(0, order // chosen, y).to(x.dtype)
