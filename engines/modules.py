"""``QuantLinear``: a linear layer whose weights stay packed."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from ..registry.facts import KernelSpec
from ..registry.kernels import Kernel
from ..registry.scheme import LayerShape, Scheme
from .lazy_weight import LazyWeight
from .packed import DENSE_PACKING, PackedLayer, args_text
from .tensors import dtype_name
from .transforms import folded

__all__ = ["DENSE_PACKING", "QuantLinear"]


class QuantLinear(PackedLayer):
    """x [..., K] to [..., N]."""

    layer_shape: LayerShape

    def __init__(
        self,
        name: str,
        scheme: Scheme,
        shape: LayerShape,
        spec: KernelSpec,
        kernel: Kernel | None = None,
        *,
        backend: str | None = None,
    ) -> None:
        super().__init__(name, scheme, shape, spec, kernel, backend=backend)
        self.out_features = shape.n
        self.in_features = shape.k

    # -- running

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Raises ``TypeError`` or ``ValueError`` where a kernel could read its input wrongly (or past its end)."""
        if x.dtype is not self._dtype or x.shape[-1] != self.in_features:
            self._refuse(x)
        return self._impl.apply(x, self._buffers)  # type: ignore[union-attr,no-any-return]

    def _refuse(self, x: torch.Tensor) -> None:
        if x.dtype is not self._dtype:
            raise TypeError(
                f"{self.layer_name}: input is {dtype_name(x.dtype)}, the layer is bound to {self.spec.dtype}; "
                f"convert the input, or the model with model.to(torch.{dtype_name(x.dtype)})"
            )
        raise ValueError(f"{self.layer_name}: input has {x.shape[-1]} features, the layer has {self.in_features}")

    # -- what model code reads off a linear layer

    @property
    def weight(self) -> torch.Tensor:
        """The dense weight as a :class:`LazyWeight`. Raises ``AttributeError`` while the module is empty."""
        if not self.loaded:
            raise AttributeError(f"{self.layer_name} has no weight yet: its tensors are not loaded")
        return LazyWeight(self)

    @property
    def bias(self) -> torch.Tensor | None:
        """[N], or ``None`` if the layer has none or is empty."""
        if not self.spec.bias or not self.loaded:
            return None
        return cast("torch.Tensor | None", self.operands().bias)

    def extra_repr(self) -> str:
        kernel = self.kernel.name if self.kernel else "no kernel bound"
        group = self.spec.group_size
        grouped = f", group={group}" if group and group != self.in_features else ""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.spec.bias}, "
            f"{self.spec.scheme}{args_text(self.spec)}{grouped}, {self.spec.dtype}, kernel={kernel}"
        )

    @torch.no_grad()
    def dense_weight(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """[N, K]: what compressed-tensors decompresses, in the scales' dtype, or that cast to ``dtype``."""
        weight: torch.Tensor = self._numerics().dequantize(self.operands())
        return weight if dtype is None else weight.to(dtype)

    def dequantize(self, dtype: torch.dtype | None = None) -> nn.Linear:
        """A plain linear layer of the same weight, by default in the dtype of the activations.

        Input quantization, if the scheme has any, is lost with it: the layer computes in ``dtype``. Transforms of its
        inputs and outputs become part of the weight.
        """
        dtype = dtype or self.dtype
        weight, bias = folded(self, self.dense_weight(), self.bias)
        with torch.device("meta"):
            linear = nn.Linear(self.in_features, self.out_features, bias=self.spec.bias)
        linear.weight = nn.Parameter(weight.to(dtype).contiguous())
        if bias is not None:
            linear.bias = nn.Parameter(bias.detach().to(dtype).clone())
        return linear.train(self.training)
