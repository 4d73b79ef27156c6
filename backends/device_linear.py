"""What kernels share that run where their tensors are, on any device: the guards and the state that is kept."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ..numerics.activations import quantize_outputs
from ..registry.errors import QuantDispatchError
from .cpu.linear import CpuLinear


def there(x: Tensor) -> AbstractContextManager[Any]:
    """Inside, x's device is the current one: providers' ops and compiled kernels run on that, wherever x is."""
    if x.is_cuda and not torch.compiler.is_compiling() and x.device.index != torch.cuda.current_device():
        return torch.cuda.device(x.device)
    return nullcontext()


class DeviceLinear(CpuLinear):
    """``forward`` gets x as [M, K] with M > 0, contiguous, on the device of the state, and returns [M, N]; the bias is
    added here unless :meth:`adds_bias`."""

    #: the entry of the state whose device is the layer's
    anchor = "codes"

    def adds_bias(self, state: Mapping[str, Tensor]) -> bool:
        """Does :meth:`forward` add the bias itself?"""
        return False

    def apply(self, x: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """x [..., K] to [..., N] in x's dtype, bias added and outputs quantized.

        For inference: raises ``QuantDispatchError`` where a gradient would have to flow through, and for a dtype,
        device or K that this kernel was not bound for.
        """
        self.check_on(x, state[self.anchor].device)
        rows = x.reshape(-1, self.k).contiguous()
        if rows.shape[0] == 0:
            return x.new_empty((*x.shape[:-1], self.n))
        with there(rows):
            y = self.forward(rows, state)
        bias = state.get("bias")
        if bias is not None and not self.adds_bias(state):
            y = y.float() + bias
        if self.outputs is not None:
            y = quantize_outputs(y.float(), self.outputs, state.get("output_scale"), state.get("output_zero_point"))
        return y.to(x.dtype).reshape(*x.shape[:-1], self.n)

    def check_on(self, x: Tensor, device: torch.device) -> None:
        # The ops behind this read memory by these sizes: what does not fit must not reach them.
        if x.shape[-1] != self.k or x.dtype != self.dtype or x.device != device:
            raise QuantDispatchError(
                "the input does not fit the kernel that this layer is bound to",
                observed=f"{x.dtype} [..., {x.shape[-1]}] on {x.device}",
                required=f"{self.dtype} [..., {self.k}] on {device}",
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
