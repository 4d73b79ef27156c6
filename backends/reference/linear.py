"""``reference``: the scheme's own numerics, run as they stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from ...registry.errors import QuantDispatchError
from ...registry.facts import KernelSpec, LayerFacts
from ...registry.lazy import load_target
from ...registry.operands import Operands

EXTRA = "extra_"
_NAMES = tuple(field.name for field in fields(Operands) if field.name != "extra")


class ReferenceKernel:
    """A layer as its scheme hands it over. State: the operands' tensors under their own names, further stored tensors
    under ``extra_<name>``."""

    def __init__(self, spec: KernelSpec) -> None:
        if not spec.reference:
            raise QuantDispatchError(
                f"scheme {spec.scheme} names no reference numerics", field="reference", observed="none",
                required="module:attr", code="QD804",
            )  # fmt: skip
        self.spec = spec
        # Looked up here and not in apply, where torch.compile would have to trace an import.
        self.numerics: Any = load_target(spec.reference)(self.facts(spec))

    @staticmethod
    def facts(spec: KernelSpec) -> LayerFacts:
        """The layer that the numerics compute; nothing here depends on how it was stored."""
        return LayerFacts(spec.kind, None, spec.weights, spec.inputs, spec.outputs)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.spec,))

    def pack(self, operands: Operands) -> dict[str, Tensor]:
        state = {name: value for name in _NAMES if (value := getattr(operands, name)) is not None}
        return state | {EXTRA + name: value for name, value in operands.extra.items()}

    def unpack(self, state: Mapping[str, Tensor]) -> Operands:
        extra = {name.removeprefix(EXTRA): value for name, value in state.items() if name.startswith(EXTRA)}
        return Operands(**{name: state.get(name) for name in _NAMES}, extra=extra)


class ReferenceLinear(ReferenceKernel):
    """y = x W.T + b as the scheme's numerics define it."""

    def apply(self, x: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """x [..., K] to [..., N] in x's dtype. For inference: raises ``QuantDispatchError`` where a gradient would have
        to flow through, as every kernel does."""
        if x.requires_grad and torch.is_grad_enabled():
            raise QuantDispatchError(
                "quantized kernels are for inference and have no gradient",
                field="requires_grad",
                observed=True,
                required=False,
                remedy="call the model under torch.no_grad() or torch.inference_mode()",
                code="QD802",
            )
        result: Tensor = self.numerics.forward(x, self.unpack(state))
        return result
