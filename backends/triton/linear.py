"""What the Triton kernels share: shapes, guards, and the state entries that are kept as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...numerics.activations import quantize_outputs
from ...registry.errors import QuantDispatchError
from ...registry.facts import KernelSpec
from ...registry.operands import Operands
from .launch import device_of, runs_on

#: prefix under which stored tensors without a meaning to the kernel are carried along
EXTRA = "extra_"
_KEPT = ("input_scale", "input_zero_point", "input_global_scale", "output_scale", "output_zero_point", "bias")


class TritonLinear:
    """Base of the kernels. ``forward`` gets x [M, K] with M > 0, its last axis contiguous, and returns [M, N], bias
    added: in x's dtype, or in fp32 where the scheme quantizes outputs (``self.outputs``)."""

    def __init__(self, spec: KernelSpec) -> None:
        if spec.n is None or spec.k is None or spec.weights is None:
            raise ValueError(f"a kernel is bound to a layer of known shape, not {spec}")
        self.spec = spec
        self.n, self.k = spec.n, spec.k
        self.weights, self.inputs, self.outputs = spec.weights, spec.inputs, spec.outputs
        self.dtype: torch.dtype = getattr(torch, spec.dtype)

    def forward(self, rows: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        raise QuantDispatchError(
            f"{type(self).__name__} computes nothing by itself", field="forward", observed=type(self).__name__,
            required="a class that has its own", code="QD804",
        )  # fmt: skip

    def apply(self, x: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """x [..., K] to [..., N] in x's dtype, bias added and outputs quantized.

        Nothing here waits for the device, so it can be captured in a CUDA graph. For inference: raises
        ``QuantDispatchError`` where a gradient would have to flow through, and for a dtype, device or K that this
        kernel was not bound for.
        """
        self.check(x)
        rows = x if x.ndim == 2 else x.reshape(-1, self.k)
        if rows.shape[0] == 0:
            return x.new_empty((*x.shape[:-1], self.n))
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        if torch.compiler.is_compiling():
            y = self.forward(rows, state)
        else:
            with device_of(rows):
                y = self.forward(rows, state)
        if self.outputs is not None:
            y = quantize_outputs(y.float(), self.outputs, state.get("output_scale"), state.get("output_zero_point"))
        y = y.to(x.dtype)
        return y if x.ndim == 2 else y.reshape(*x.shape[:-1], self.n)

    def check(self, x: Tensor) -> None:
        # Kernels read memory by these sizes: what does not fit must not reach them.
        if x.shape[-1] != self.k or x.dtype != self.dtype or not runs_on(x):
            raise QuantDispatchError(
                "the input does not fit the kernel that this layer is bound to",
                observed=f"{x.dtype} [..., {x.shape[-1]}] on {x.device.type}",
                required=f"{self.dtype} [..., {self.k}] on cuda",
                field="x",
                remedy="bind the layer again after changing its dtype or device",
                code="QD801",
            )
        if x.requires_grad and torch.is_grad_enabled():
            raise QuantDispatchError(
                "quantized kernels are for inference and have no gradient",
                field="requires_grad",
                observed=True,
                required=False,
                remedy="call the model under torch.no_grad() or torch.inference_mode()",
                code="QD802",
            )

    # --- state ---

    def keep(self, operands: Operands) -> dict[str, Tensor]:
        """The entries that no kernel changes."""
        state = {name: value for name in _KEPT if (value := getattr(operands, name)) is not None}
        return state | {EXTRA + name: value for name, value in operands.extra.items()}

    def restore(self, state: Mapping[str, Tensor], **parts: Any) -> Operands:
        extra = {name.removeprefix(EXTRA): value for name, value in state.items() if name.startswith(EXTRA)}
        return Operands(**parts, **{name: state.get(name) for name in _KEPT}, extra=extra)
