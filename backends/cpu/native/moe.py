"""All routed experts of a layer in one call of the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ....registry.errors import QuantDispatchError
from . import product
from .library import Weight, load

if TYPE_CHECKING:
    from .linear import NativeLinear

#: qd_activation of abi.h
ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2}
Bound = tuple["NativeLinear", Mapping[str, Tensor]]


def fuse(
    first: Sequence[Sequence[Bound]], last: Sequence[Bound], activation: str
) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """One function for all experts: x [T, H], int64 [T, k], fp32 [T, k] to [T, H], the weighted sum over the chosen.

    ``first``: of each expert the gate and what it gates, or one projection where there is no gate; ``last``: of each
    the one that writes the hidden state; each a kernel and its state, of any mix of weight formats. ``None`` where the
    library does not compute them together: quantized inputs or outputs, another activation, shapes that differ.
    """
    gates = [own[0] for own in first]
    ups = [own[1] for own in first if len(own) == 2]
    layers = [*gates, *ups, *last]
    if activation not in ACTIVATIONS or any(len(own) not in (1, 2) for own in first) or len(ups) not in (0, len(gates)):
        return None
    inner, features = gates[0][0].n, gates[0][0].k
    if any((impl.n, impl.k) != (inner, features) for impl, _ in (*gates, *ups)):
        return None
    if any((impl.n, impl.k) != (features, inner) for impl, _ in last):
        return None
    if any(not impl.direct or impl.dtype != gates[0][0].dtype for impl, _ in layers):
        return None
    return Experts(gates, ups, last, ACTIVATIONS[activation])


class Experts:
    """The library's view of the experts' tensors, made once."""

    def __init__(self, gates: Sequence[Bound], ups: Sequence[Bound], downs: Sequence[Bound], activation: int) -> None:
        self.dtype: torch.dtype = gates[0][0].dtype
        self.features: int = gates[0][0].k
        # tensors, for the addresses are of their memory
        self._kept = [dict(state) for _, state in (*gates, *ups, *downs)]
        self._arguments = (_array(gates), _array(ups) if ups else None, _array(downs), len(gates), activation)
        self._number = product.DTYPES[self.dtype]
        self._call = load().qd_moe

    def __call__(self, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        if x.ndim != 2 or x.dtype != self.dtype or x.shape[1] != self.features or not x.is_cpu:
            raise QuantDispatchError(
                "the input does not fit the experts' kernel",
                field="x",
                observed=f"{x.dtype} {list(x.shape)} on {x.device.type}",
                required=f"{self.dtype} [tokens, {self.features}] on cpu",
                code="QD801",
            )
        x = x.resolve_neg()
        if x.stride(1) != 1:
            x = x.contiguous()
        index = index.to(torch.int64).contiguous()
        weights = weights.to(torch.float32).contiguous()
        tokens, chosen = index.shape
        if index.shape != weights.shape or tokens != x.shape[0]:
            raise QuantDispatchError(
                "the experts' indices and weights do not fit the input", field="index",
                observed=f"{list(index.shape)}, {list(weights.shape)}", required=f"[{x.shape[0]}, k] both",
                code="QD801",
            )  # fmt: skip
        y = torch.empty(tokens, self.features, dtype=self.dtype, device="cpu")
        error = self._call(
            *self._arguments,
            *(x.data_ptr(), tokens, x.stride(0), index.data_ptr(), weights.data_ptr(), chosen),
            *(y.data_ptr(), self.features, self._number, torch.get_num_threads()),
        )
        if error:
            raise product.failed("qd_moe", error)
        return y


def _array(layers: Sequence[Bound]) -> Any:
    return (Weight * len(layers))(*(_weight(impl, state) for impl, state in layers))


def _weight(impl: NativeLinear, state: Mapping[str, Tensor]) -> Weight:
    """``qd_weight`` of a layer, as its own product sees it."""
    scale, columns, whole = state["scale"], state.get("columns"), state.get("global_scale")
    layout = impl.layout
    group = layout.group if columns is None else columns.shape[0] // layout.groups
    dtype = product.E4M3 if impl.nv else product.SCALES[scale.dtype]
    return product.describe(
        *(state["packed"], scale, state.get("zero"), columns, state.get("addend")),
        1.0 if whole is None else 1.0 / whole.item(),
        (impl.n, impl.k, group, layout.groups, layout.format, layout.slot_bits, dtype),
    )
