"""Who has Marlin's kernels: one adapter a provider. An adapter is made when a layer is bound, and is made only of ops
whose signature is the recorded one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Protocol

from torch import Tensor

from ....registry.errors import QuantDispatchError
from ....registry.lazy import load_target
from .weight_types import WeightType

_HERE = "quantdispatch.backends.marlin.providers"
#: provider to its adapter's class
ADAPTERS = {"vllm": f"{_HERE}.vllm:VllmMarlin", "sglang": f"{_HERE}.sglang:SglangMarlin"}


class ProviderMismatch(QuantDispatchError):
    """A provider's op is missing, or takes other arguments than were recorded."""


@dataclass(frozen=True)
class Weight:
    """One weight in Marlin's layout, or the weights of E experts stacked (then every tensor has E in front).

    ``codes``: int32 [K / 16, N * 16 * bits / 32]. ``scales``: [G, N] in the dtype of x, or one byte each for fp4.
    ``zeros``: int32 [G, N * 4 / 32] or ``None``. ``whole``: [1] or ``None``, a factor of all. ``bias``: [N] permuted,
    or ``None``. ``locks``: int32 zeros, four for each multiprocessor. ``n``, ``k``: of the layout, padding included.
    """

    kind: WeightType
    codes: Tensor
    scales: Tensor
    zeros: Tensor | None
    whole: Tensor | None
    bias: Tensor | None
    locks: Tensor
    n: int
    k: int


@dataclass(frozen=True)
class Routing:
    """Tokens sorted by expert, as Marlin's MoE op takes them; see :mod:`..routing`.

    ``rows``: int32 [P], of each place the row of the product (tokens times ``top_k``), or their number where the place
    is empty. ``experts``: int32 [P / block]. ``used``: int32 [1], places in use. ``weights``: fp32 [T, k].
    """

    rows: Tensor
    experts: Tensor
    used: Tensor
    weights: Tensor
    block: int


class Adapter(Protocol):
    """A provider's ops under one face. Raises :class:`ProviderMismatch` when made of ops that are not as recorded."""

    #: whether :attr:`Weight.bias` is added by the op
    adds_bias: bool
    #: whether the factor of all is read as fp32; else it has the dtype of x
    wide_factor: bool

    def gemm(self, x: Tensor, weight: Weight) -> Tensor:
        """x [M, K] contiguous to [M, N] in x's dtype."""

    def moe_gemm(self, x: Tensor, weight: Weight, routing: Routing, top_k: int, weighted: bool) -> Tensor:
        """x [T, K] to [T * top_k, N]: of each row the product with its expert's weight, times the row's routing weight
        if ``weighted``."""

    def check_moe(self) -> None:
        """Raises :class:`ProviderMismatch` where there is no MoE op as recorded."""


@cache
def adapter(provider: str) -> Adapter:
    """The adapter of a provider, made once a process."""
    made: Adapter = load_target(ADAPTERS[provider])()
    return made
