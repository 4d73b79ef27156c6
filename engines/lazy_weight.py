"""What ``module.weight`` is for a quantized module: the dense weight, computed only if somebody computes with it.

Model code asks a weight for its dtype, device and shape far more often than for its values
(``x.to(self.wo.weight.dtype)``). A wrapper tensor answers those from metadata and stands in for the dequantized
weight in every operation, so that code which multiplies by ``weight`` itself gets the right numbers, if slowly.
Nothing dense stays in memory.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.utils._pytree import tree_leaves, tree_map


class HasWeight(Protocol):
    out_features: int
    in_features: int

    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    def dense_weight(self, dtype: torch.dtype | None = None) -> torch.Tensor: ...


class LazyWeight(torch.Tensor):
    """[N, K] in the layer's activation dtype and on its device. Read-only."""

    _layer: HasWeight

    @staticmethod
    def __new__(cls, layer: HasWeight) -> LazyWeight:
        weight: LazyWeight = torch.Tensor._make_wrapper_subclass(
            cls, (layer.out_features, layer.in_features), dtype=layer.dtype, device=layer.device, requires_grad=False
        )
        weight._layer = layer
        return weight

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"LazyWeight(shape={tuple(self.shape)}, dtype={self.dtype}, device='{self.device}')"

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        """A copy has values of its own, and they can be written."""
        return self.clone()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        arguments = func._schema.arguments
        given = [*zip(arguments, args, strict=False), *((a, kwargs[a.name]) for a in arguments if a.name in kwargs)]
        for argument, value in given:
            if argument.is_write and any(isinstance(leaf, cls) for leaf in tree_leaves(value)):
                raise RuntimeError("the weight of a quantized layer is read-only; dequantize() the layer to change it")
        return func(*tree_map(_dense, args), **tree_map(_dense, kwargs))


def _dense(value: Any) -> Any:
    return value._layer.dense_weight(value.dtype) if isinstance(value, LazyWeight) else value
