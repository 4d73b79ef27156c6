"""Linear layers that a checkpoint leaves dense, computed by a kernel of ours where one is faster than torch.

They stay what they are: an ``nn.Linear`` with its parameters, tied or not. Only where the product is taken differs, and
what it computes does not. A plan goes on calling them torch's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..registry.environment import Environment
from ..registry.facts import KernelSpec
from ..registry.registry import get_registry
from ..registry.scheme import KernelImpl
from .binding import implementation
from .tensors import dtype_name

#: rows of a weight below which a call costs as much as the product
FEW_ROWS = 64


class DenseLinear(nn.Linear):
    """``nn.Linear`` whose product a kernel of op ``dense`` takes; :func:`quicken` makes them."""

    _dense: KernelImpl

    def forward(self, input: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias
        if type(weight) is not nn.Parameter:
            return F.linear(input, weight, bias)
        result: Tensor = self._dense.apply(
            input, {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
        )
        return result


def dense_kernel(dtype: torch.dtype) -> KernelImpl | None:
    """The kernel for dense layers of ``dtype`` on this CPU, or ``None`` where torch's is as good."""
    spec = KernelSpec("dense", "linear", "dense", None, None, None, None, None, dtype_name(dtype))
    kernel = get_registry().select(spec, Environment.detect("cpu"), probe=True).kernel
    return None if kernel is None else implementation(kernel, spec)


def quicken(model: nn.Module) -> None:
    """Make plain linear layers of ``model`` on the CPU :class:`DenseLinear` ones, where there is a kernel for them."""
    kernels: dict[torch.dtype, KernelImpl | None] = {}
    for module in model.modules():
        if type(module) is not nn.Linear or not _suits(module.weight):
            continue
        dtype = module.weight.dtype
        if dtype not in kernels:
            kernels[dtype] = dense_kernel(dtype)
        impl = kernels[dtype]
        if impl is not None:
            module.__class__ = DenseLinear
            vars(module)["_dense"] = impl


def restore(model: nn.Module) -> None:
    """The inverse of :func:`quicken`."""
    for module in model.modules():
        if type(module) is DenseLinear:
            del vars(module)["_dense"]
            module.__class__ = nn.Linear  # type: ignore[assignment]


def _suits(weight: Tensor) -> bool:
    return type(weight) is nn.Parameter and weight.device.type == "cpu" and weight.shape[0] >= FEW_ROWS
