"""``PackedLayer``: a module that holds what a checkpoint stores of one layer, in whatever layout its kernel wants.

What a linear layer, an embedding and a cache have in common: tensors in and out, ``to()``, and a ``state_dict`` that is
not the kernel's layout but the tensors of the checkpoint format, so that what is saved can be read by anyone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any, Self, cast

import torch
from torch import nn

from ..registry.errors import CheckpointError, QuantDispatchError
from ..registry.facts import KernelSpec
from ..registry.kernels import Kernel
from ..registry.lazy import load_target
from ..registry.operands import Operands
from ..registry.scheme import KernelImpl, LayerShape, Numerics, Scheme
from .binding import choose_kernel, implementation
from .tensors import described, dtype_name

#: compressed-tensors packs 3, 5, 6 and 7 bits densely from this version on, which is how they are stored back
DENSE_PACKING = "0.18.0"
Move = Callable[[torch.Tensor], torch.Tensor]
_CARRIER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class PackedLayer(nn.Module):
    """Holds no parameters; the kernel's tensors are its buffers.

    A new module is empty: :meth:`load_stored` or ``load_state_dict`` fills it. ``spec.dtype`` is the dtype of
    activations. ``layer_shape``: ``None`` for a scheme without a weight matrix.
    """

    _impl: KernelImpl | None

    def __init__(
        self,
        name: str,
        scheme: Scheme,
        shape: LayerShape | None,
        spec: KernelSpec,
        kernel: Kernel | None = None,
        *,
        backend: str | None = None,
    ) -> None:
        """``name``: of the module in the checkpoint, for messages. ``kernel``: bound later for the device when
        ``None``. ``backend``: the only one to use when a kernel has to be chosen (again)."""
        super().__init__()
        self.layer_name = name
        self.scheme = scheme
        self.layer_shape = shape
        self.backend = backend
        self._empty_device = torch.device("cpu")
        self._set_spec(spec)
        self._bind(kernel)

    @property
    def dtype(self) -> torch.dtype:
        """Of the activations."""
        return self._dtype

    @property
    def device(self) -> torch.device:
        return next((t.device for t in self._buffers.values() if t is not None), self._empty_device)

    @property
    def loaded(self) -> bool:
        return self._impl is not None and bool(self._buffers)

    # -- stored tensors in and out

    @torch.no_grad()
    def load_stored(self, tensors: Mapping[str, torch.Tensor], device: torch.device | str | None = None) -> None:
        """Fill the module from the checkpoint's tensors by local name (``bias`` included), on ``device``.

        Raises ``CheckpointError`` naming layer and tensor where they contradict the scheme, and ``NoKernelFound``.
        """
        target = self.device if device is None else torch.device(device)
        shape = self.scheme.check(self.layer_name, described(tensors))
        self._check_shape(shape)
        moved = {name: tensor.detach().to(target) for name, tensor in tensors.items()}
        operands = self._numerics().operands(moved, shape, self.layer_name)  # type: ignore[arg-type]
        if (operands.bias is not None) != self.spec.bias:
            raise CheckpointError(
                "the stored tensors have a bias and the layer has none" if operands.bias is not None
                else "the layer has a bias and the stored tensors have none",
                layer=self.layer_name, field="bias", observed="none" if operands.bias is None else "a bias",
                required="a bias" if self.spec.bias else "none", code="QD671",
            )  # fmt: skip
        self.layer_shape = shape
        self._pack(operands, self.spec, target)
        if shape is not None and shape.packing == "padded":
            # what we store from here on is packed densely: where the width does not tell, the version does
            self.scheme = copy(self.scheme)
            self.scheme.version = DENSE_PACKING

    def _check_shape(self, shape: LayerShape | None) -> None:
        ours = self.layer_shape
        if shape is not None and ours is not None and (shape.n, shape.k) != (ours.n, ours.k):
            raise CheckpointError(
                "the stored tensors are of another shape than the layer",
                layer=self.layer_name,
                field="weight",
                observed=f"[{shape.n}, {shape.k}]",
                required=f"[{ours.n}, {ours.k}]",
                code="QD670",
            )

    def stored_tensors(self) -> dict[str, torch.Tensor]:
        """The layer as the checkpoint format stores it, by local name: the inverse of :meth:`load_stored`."""
        operands = self.operands()
        stored = dict(self._numerics().stored(operands, self.layer_shape))  # type: ignore[arg-type]
        if operands.bias is not None:
            stored.setdefault("bias", operands.bias)
        return stored

    def operands(self) -> Operands:
        """The layer unpacked. Raises ``RuntimeError`` while the module is empty."""
        if self._impl is None or not self._buffers:
            raise RuntimeError(f"{self.layer_name} is empty: its tensors are not loaded")
        with torch.no_grad():
            return self._impl.unpack(self._buffers)

    # -- nn.Module's machinery

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        if self.loaded:
            for name, tensor in self.stored_tensors().items():
                destination[prefix + name] = tensor

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        given = {key[len(prefix) :]: value for key, value in state_dict.items() if key.startswith(prefix)}
        given = {name: value for name, value in given.items() if name.partition(".")[0] not in self._modules}
        required, optional = self.scheme.tensor_names()
        known = required | optional | {"bias"}
        missing_keys.extend(prefix + name for name in sorted(required - given.keys()) if strict)
        unexpected_keys.extend(prefix + name for name in sorted(given.keys() - known) if strict)
        if not required <= given.keys():
            return
        try:
            self.load_stored({name: tensor for name, tensor in given.items() if name in known})
        except QuantDispatchError as error:
            error_msgs.append(str(error))

    def _apply(self, fn: Move, recurse: bool = True) -> Self:
        """``to``, ``half``, ``cuda``, ``share_memory`` and the like all come here with a function of one tensor.

        What it does to an empty tensor of the activations' dtype tells what is asked for. A new dtype or kind of device
        needs a kernel chosen and weights packed again; otherwise tensors move as they are, scales never cast.
        """
        for child in self.children():
            child._apply(fn)  # type: ignore[no-untyped-call]
        target = fn(torch.empty(0, dtype=self.dtype, device=self.device))
        if not self.loaded:
            self._empty_device = target.device
            self._set_spec(replace(self.spec, dtype=dtype_name(target.dtype)))
            return self
        abstract = "meta" in (target.device.type, self.device.type)
        if not abstract and (target.dtype, target.device.type) != (self.dtype, self.device.type):
            spec = replace(self.spec, dtype=dtype_name(target.dtype))
            with torch.no_grad():
                self._pack(_moved(self.operands(), target.device), spec, target.device, choose=True)
            return self
        with torch.no_grad():
            for name, tensor in self._buffers.items():
                self._buffers[name] = None if tensor is None else move_bits(tensor, fn)
        return self

    # -- helpers

    def _set_spec(self, spec: KernelSpec) -> None:
        self.spec = spec
        self._dtype: torch.dtype = getattr(torch, spec.dtype)

    def _bind(self, kernel: Kernel | None) -> None:
        self.kernel = kernel
        self._impl = None if kernel is None else implementation(kernel, self.spec)

    def _choose(self, spec: KernelSpec, device: torch.device) -> tuple[Kernel, KernelSpec]:
        """The kernel for ``device``, and what it is asked to compute."""
        return choose_kernel(self.layer_name, spec, device, self.backend), spec

    def _pack(self, operands: Operands, spec: KernelSpec, device: torch.device, choose: bool = False) -> None:
        """Everything that may fail comes first, so that a failure leaves the module as it was."""
        kernel = self.kernel
        if choose or kernel is None:
            kernel, spec = self._choose(spec, device)
        impl = implementation(kernel, spec)
        state = impl.pack(operands)
        self._set_spec(spec)
        self.kernel, self._impl = kernel, impl
        self._buffers.clear()
        self._buffers.update(state)

    def _numerics(self) -> Numerics:
        return cast(Numerics, load_target(self.scheme.numerics)(self.scheme.layer))


def move_bits(tensor: torch.Tensor, fn: Move) -> torch.Tensor:
    """Apply ``fn`` to a tensor's bits, so that a cast in it does not touch them; only the device it chose counts."""
    carrier = tensor.view(_CARRIER[tensor.element_size()]) if tensor.is_floating_point() else tensor
    moved = fn(carrier)
    if moved.dtype != carrier.dtype:
        moved = carrier.to(moved.device)
    return moved.view(tensor.dtype)


def _moved(operands: Operands, device: torch.device) -> Operands:
    def move(value: Any) -> Any:
        return value.to(device) if isinstance(value, torch.Tensor) else value

    fields = {name: move(value) for name, value in vars(operands).items() if name != "extra"}
    return Operands(**fields, extra={name: move(value) for name, value in operands.extra.items()})


def args_text(spec: KernelSpec) -> str:
    """`` int4 asymmetric`` or `` float8 x float8 inputs``: the quant args in a few words."""
    weights, inputs = spec.weights, spec.inputs
    if weights is None:
        return ""
    text = f" {weights.type}{weights.num_bits}{'' if weights.symmetric else ' asymmetric'}"
    if inputs is not None:
        text += f" x {inputs.type}{inputs.num_bits} {'dynamic' if inputs.dynamic else 'static'} inputs"
    return text
