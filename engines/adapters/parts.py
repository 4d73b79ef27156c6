"""One rank's part of one layer: an engine's loader brings its stored tensors one by one, a bound kernel comes out.

As soon as all that the scheme needs is there, what the rank does not keep is let go: at no time does a rank hold more
than a layer that it will not compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ...registry.errors import CheckpointError, QuantDispatchError
from ...registry.facts import KernelSpec
from ...registry.kernels import Kernel
from ...registry.lazy import load_target
from ...registry.resolution import Resolution
from ...registry.resolver import DENSE
from ...registry.scheme import KernelImpl, LayerShape, Numerics, Scheme
from ..binding import choose_kernel, implementation
from ..dense import dense_kernel
from ..tensors import described, dtype_name
from .cutting import Cut, cut
from .devices import device_here

#: says how large a layer is, which its other tensors mostly do as well
_SHAPE = "weight_shape"


@dataclass(frozen=True)
class Bound:
    """A kernel with the tensors that it computes with. ``kernel``: its name. ``n``: its outputs."""

    impl: KernelImpl
    state: dict[str, Tensor]
    kernel: str
    n: int

    def __call__(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.impl.apply(x, self.state))


class Part:
    """``layer``: resolved. ``where``: what this rank keeps. ``n``, ``k``: how much of it the engine counts on.

    ``dtype``: of the activations. ``device``: where it is computed, as torch or a plan names it. ``backend``: the only
    one to take kernels from.
    """

    def __init__(
        self,
        layer: Resolution,
        where: Cut,
        n: int,
        k: int,
        dtype: torch.dtype,
        *,
        device: str | torch.device = "cpu",
        backend: str | None = None,
    ) -> None:
        if layer.error is not None:
            raise layer.error
        assert layer.scheme_object is not None
        self.name = layer.name
        self.scheme: Scheme = layer.scheme_object
        self.where, self.n, self.k = where, n, k
        self.dtype, self.device, self.backend = dtype, device_here(device), backend
        required, optional = self.scheme.tensor_names()
        #: what is to be waited for, and all that has a meaning (``bias`` belongs to the engine)
        self._awaited = required | (optional - {_SHAPE})
        self._required, self.names = required, required | optional
        self._tensors: dict[str, Tensor] = {}
        self.bound: Bound | None = None

    @property
    def dense(self) -> bool:
        return self.scheme.name == DENSE

    def take(self, name: str, tensor: Tensor) -> None:
        """``name``: local, e.g. ``weight_packed``; ``tensor`` may be on any device. What comes after all that is needed
        says nothing new. Raises ``CheckpointError`` for a tensor without data."""
        if self.bound is not None:
            return
        if tensor.is_meta:
            raise CheckpointError(
                "has no data: the engine loads a tensor that was never read", layer=self.name, field=name,
                observed="a tensor on meta", required=f"one on {self.device} or the CPU", code="QD654",
            )  # fmt: skip
        # a tensor of a mapped file is only valid while that is open
        self._tensors[name] = tensor.detach().to(self.device, copy=True)
        if self._awaited <= self._tensors.keys():
            self.bind()

    def bind(self) -> Bound:
        """The kernel. Raises ``CheckpointError`` for missing tensors and for those that contradict scheme or engine,
        ``NoKernelFound`` where nothing computes it here."""
        if self.bound is None:
            with torch.inference_mode(False), torch.no_grad():
                self.bound = self._bind()
            self._tensors.clear()
        return self.bound

    def _bind(self) -> Bound:
        shape = self.scheme.check(self.name, described(self._tensors))
        if shape is None:
            raise CheckpointError(
                "is no matrix, and the engine has a layer for it", layer=self.name, field="weight",
                observed=", ".join(sorted(self._tensors)) or "no tensors", required=f"[{self.n}, {self.k}]",
                code="QD672",
            )  # fmt: skip
        operands = _numerics(self.scheme).operands(self._tensors, shape, self.name)
        piece = cut(self.name, self.scheme, operands, shape, self.where)
        self._check(piece.shape, shape)
        scheme = type(self.scheme)(piece.facts, version=self.scheme.version)
        if self.dense:
            return bind_dense(piece.operands.codes.to(self.dtype).contiguous())
        spec = scheme.kernel_spec(piece.shape, dtype_name(self.dtype))
        spec = replace(spec, has_g_idx=piece.operands.g_idx is not None)
        kernel, impl, state = self._pack(spec, piece.operands)
        return Bound(impl, state, kernel.name, piece.shape.n)

    def _pack(self, spec: KernelSpec, operands: Any) -> tuple[Kernel, KernelImpl, dict[str, Tensor]]:
        kernel = choose_kernel(self.name, spec, self.device, self.backend)
        impl = implementation(kernel, spec)
        return kernel, impl, impl.pack(operands)

    def _check(self, piece: LayerShape, whole: LayerShape) -> None:
        if (piece.n, piece.k) != (self.n, self.k):
            raise CheckpointError(
                f"the checkpoint has a layer of [{whole.n}, {whole.k}], and the engine's part of it is another",
                layer=self.name, field="weight", observed=f"[{piece.n}, {piece.k}]", required=f"[{self.n}, {self.k}]",
                remedy="config.json and the weights are of two models",
                code="QD670",
            )  # fmt: skip


class TablePart(Part):
    """A look-up table: its kernel gives rows. One that a head computes with too has a kernel for both."""

    def _pack(self, spec: KernelSpec, operands: Any) -> tuple[Kernel, KernelImpl, dict[str, Tensor]]:
        linear = replace(spec, op="linear", kind="lm_head")
        try:
            kernel = choose_kernel(self.name, linear, self.device, self.backend)
        except QuantDispatchError:
            kernel = None
        if kernel is None or not hasattr(load_target(kernel.target), "rows"):
            linear = replace(spec, op="embedding", kind="embedding")
            kernel = choose_kernel(self.name, linear, self.device, self.backend)
        impl = implementation(kernel, linear)
        return kernel, impl, impl.pack(operands)


class TorchDense:
    """A layer left dense, where no kernel of ours beats torch's."""

    def pack(self, operands: Any) -> dict[str, Any]:
        return {"weight": operands.codes}

    def unpack(self, state: Mapping[str, Any]) -> Any:
        raise QuantDispatchError(
            "a dense layer has nothing packed", field="unpack", observed="a dense layer", required="a packed one",
            code="QD804",
        )  # fmt: skip

    def apply(self, x: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        return F.linear(x, state["weight"])


def bind_dense(weight: Tensor) -> Bound:
    """A dense weight [N, K] in the dtype of the activations."""
    impl = dense_kernel(weight.dtype) if weight.device.type == "cpu" else None
    name = "torch" if impl is None else "cpu/native_dense"
    return Bound(impl or TorchDense(), {"weight": weight}, name, weight.shape[0])


def stack(parts: list[Bound]) -> list[Bound]:
    """Parts that read the same input as one product where their kernel can do that, else as they are."""
    method = getattr(parts[0].impl, "stack", None)
    if len(parts) < 2 or method is None or any(type(p.impl) is not type(parts[0].impl) for p in parts):
        return parts
    made = method([(part.impl, part.state) for part in parts])
    if made is None:
        return parts
    impl, state, _ = made
    return [Bound(impl, state, parts[0].kernel, sum(part.n for part in parts))]


def _numerics(scheme: Scheme) -> Numerics:
    return cast(Numerics, load_target(scheme.numerics)(scheme.layer))
