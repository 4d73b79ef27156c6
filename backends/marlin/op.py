"""Marlin's product as one op of torch, for torch.compile: providers' functions are not traced."""

from __future__ import annotations

import torch
from torch import Tensor

from .providers import Weight, adapter, weight_types

_KINDS = {
    kind.name: kind
    for kind in (
        weight_types.UINT4,
        weight_types.UINT4B8,
        weight_types.UINT8B128,
        weight_types.FLOAT8,
        weight_types.FLOAT4,
    )
}


@torch.library.custom_op("quantdispatch::marlin_gemm", mutates_args=())
def _product(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    whole: Tensor | None,
    bias: Tensor | None,
    locks: Tensor,
    n: int,
    k: int,
    kind: str,
    provider: str,
) -> Tensor:
    return adapter(provider).gemm(x, Weight(_KINDS[kind], codes, scales, zeros, whole, bias, locks, n, k))


@_product.register_fake
def _(x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor | None, whole: Tensor | None, bias: Tensor | None,
      locks: Tensor, n: int, k: int, kind: str, provider: str) -> Tensor:  # fmt: skip
    return x.new_empty(x.shape[0], n)


def gemm(x: Tensor, weight: Weight, provider: str) -> Tensor:
    """:meth:`.providers.Adapter.gemm`, opaque to tracing."""
    tensors = (weight.codes, weight.scales, weight.zeros, weight.whole, weight.bias, weight.locks)
    result: Tensor = _product(x, *tensors, weight.n, weight.k, weight.kind.name, provider)
    return result
