"""``QuantCache``: the scales of one attention module's key and value cache, and what is done with them."""

from __future__ import annotations

import torch
from torch import Tensor

from ..registry.errors import CheckpointError
from ..registry.facts import KernelSpec
from ..registry.scheme import Scheme
from .packed import PackedLayer


class QuantCache(PackedLayer):
    """Keys, values and, where the layer is of kind ``attention``, queries to float8_e4m3fn and back."""

    def __init__(self, name: str, scheme: Scheme, spec: KernelSpec, *, backend: str | None = None) -> None:
        super().__init__(name, scheme, None, spec, backend=backend)

    @property
    def parts(self) -> tuple[str, ...]:
        """``"k"``, ``"v"`` and, of attention, ``"q"``. A queries' scale beside a cache scheme is kept and unused, as
        in compressed-tensors."""
        return ("k", "v", "q") if self.spec.kind == "attention" else ("k", "v")

    def extra_repr(self) -> str:
        inputs = self.spec.inputs
        kernel = self.kernel.name if self.kernel else "no kernel bound"
        strategy = inputs.strategy if inputs else None
        return f"{self.spec.scheme}, {' '.join(self.parts)}, {strategy}, {self.spec.dtype}, kernel={kernel}"

    def quantize(self, part: str, states: Tensor) -> Tensor:
        """``part``: one of :attr:`parts`; states [..., heads, length, head_dim] to float8_e4m3fn."""
        codes: Tensor = self._impl.quantize(part, states, self._buffers)  # type: ignore[union-attr]
        return codes

    def dequantize(self, part: str, codes: Tensor, dtype: torch.dtype) -> Tensor:
        """The inverse, in ``dtype``."""
        states: Tensor = self._impl.dequantize(part, codes, self._buffers)  # type: ignore[union-attr]
        return states.to(dtype)

    def round(self, part: str, states: Tensor) -> Tensor:
        """What is left of ``states`` once they have been float8."""
        return self.dequantize(part, self.quantize(part, states), states.dtype)

    def check_heads(self, keys: int | None, queries: int | None) -> None:
        """Raises ``CheckpointError`` for scales by head that are not the model's heads."""
        operands = self.operands()
        for field, heads in (("k_scale", keys), ("v_scale", keys), ("q_scale", queries)):
            scale: Tensor | None = getattr(operands, field)
            if scale is not None and scale.ndim == 3 and heads is not None and scale.shape[0] not in (1, heads):
                raise CheckpointError(
                    "the cache has scales for another number of heads than the model", layer=self.layer_name,
                    field=field, observed=scale.shape[0], required=heads, code="QD670",
                )  # fmt: skip
