"""``QuantLinear``: a linear layer whose weights stay packed, in whatever layout its kernel wants.

Its ``state_dict`` is not that layout but the tensors of the checkpoint format, so that what is saved can be read by
anyone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn

from ..registry.errors import CheckpointError, QuantDispatchError
from ..registry.facts import KernelSpec
from ..registry.kernels import Kernel
from ..registry.lazy import load_target
from ..registry.operands import Operands
from ..registry.scheme import KernelImpl, LayerShape, Numerics, Scheme
from .binding import choose_kernel, implementation
from .lazy_weight import LazyWeight
from .tensors import described, dtype_name

#: compressed-tensors packs 3, 5, 6 and 7 bits densely from this version on, which is how they are stored back
DENSE_PACKING = "0.18.0"
Move = Callable[[torch.Tensor], torch.Tensor]
_CARRIER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class QuantLinear(nn.Module):
    """x [..., K] to [..., N]. Holds no parameters; the kernel's tensors are its buffers.

    A new module is empty: :meth:`load_stored` or ``load_state_dict`` fills it. ``spec.dtype`` is the dtype of
    activations.
    """

    _impl: KernelImpl | None

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
        """``name``: of the module in the checkpoint, for messages. ``kernel``: bound later for the device when
        ``None``. ``backend``: the only one to use when a kernel has to be chosen (again)."""
        super().__init__()
        self.layer_name = name
        self.scheme = scheme
        self.layer_shape = shape
        self.backend = backend
        self.out_features = shape.n
        self.in_features = shape.k
        self._empty_device = torch.device("cpu")
        self._set_spec(spec)
        self._bind(kernel)

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
    def dtype(self) -> torch.dtype:
        """Of the activations."""
        return self._dtype

    @property
    def device(self) -> torch.device:
        return next((t.device for t in self._buffers.values() if t is not None), self._empty_device)

    @property
    def loaded(self) -> bool:
        return self._impl is not None and bool(self._buffers)

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
            f"{self.spec.scheme}{_args_text(self.spec)}{grouped}, {self.spec.dtype}, kernel={kernel}"
        )

    # -- stored tensors in and out

    @torch.no_grad()
    def load_stored(self, tensors: Mapping[str, torch.Tensor], device: torch.device | str | None = None) -> None:
        """Fill the module from the checkpoint's tensors by local name (``bias`` included), on ``device``.

        Raises ``CheckpointError`` naming layer and tensor where they contradict the scheme, and ``NoKernelFound``.
        """
        target = self.device if device is None else torch.device(device)
        shape = self.scheme.check(self.layer_name, described(tensors))
        assert shape is not None  # a scheme without a matrix has no QuantLinear
        if (shape.n, shape.k) != (self.out_features, self.in_features):
            raise CheckpointError(
                "the stored tensors are of another shape than the layer",
                layer=self.layer_name,
                observed=f"[{shape.n}, {shape.k}]",
                required=f"[{self.out_features}, {self.in_features}]",
            )
        moved = {name: tensor.detach().to(target) for name, tensor in tensors.items()}
        operands = self._numerics().operands(moved, shape, self.layer_name)
        if (operands.bias is not None) != self.spec.bias:
            raise CheckpointError(
                "the stored tensors have a bias and the layer has none" if operands.bias is not None
                else "the layer has a bias and the stored tensors have none",
                layer=self.layer_name, field="bias",
            )  # fmt: skip
        self.layer_shape = shape
        self._pack(operands, self.spec, target)
        if shape.packing == "padded":
            # what we store from here on is packed densely: where the width does not tell, the version does
            self.scheme = copy(self.scheme)
            self.scheme.version = DENSE_PACKING

    def stored_tensors(self) -> dict[str, torch.Tensor]:
        """The layer as the checkpoint format stores it, by local name: the inverse of :meth:`load_stored`."""
        operands = self.operands()
        stored = dict(self._numerics().stored(operands, self.layer_shape))
        if operands.bias is not None:
            stored.setdefault("bias", operands.bias)
        return stored

    def operands(self) -> Operands:
        """The layer unpacked. Raises ``RuntimeError`` while the module is empty."""
        if self._impl is None or not self._buffers:
            raise RuntimeError(f"{self.layer_name} is empty: its tensors are not loaded")
        with torch.no_grad():
            return self._impl.unpack(self._buffers)

    @torch.no_grad()
    def dense_weight(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """[N, K]: what compressed-tensors decompresses, in the scales' dtype, or that cast to ``dtype``."""
        weight: torch.Tensor = self._numerics().dequantize(self.operands())
        return weight if dtype is None else weight.to(dtype)

    def dequantize(self, dtype: torch.dtype | None = None) -> nn.Linear:
        """A plain linear layer of the same weight, by default in the dtype of the activations.

        Input quantization, if the scheme has any, is lost with it: the layer computes in ``dtype``.
        """
        dtype = dtype or self.dtype
        with torch.device("meta"):
            linear = nn.Linear(self.in_features, self.out_features, bias=self.spec.bias)
        linear.weight = nn.Parameter(self.dense_weight(dtype).contiguous())
        if self.spec.bias:
            linear.bias = nn.Parameter(cast(torch.Tensor, self.bias).detach().to(dtype).clone())
        return linear.train(self.training)

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

    def _apply(self, fn: Move, recurse: bool = True) -> QuantLinear:
        """``to``, ``half``, ``cuda``, ``share_memory`` and the like all come here with a function of one tensor.

        What it does to an empty tensor of the activations' dtype tells what is asked for. A new dtype or kind of device
        needs a kernel chosen and weights packed again; otherwise tensors move as they are, scales never cast.
        """
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
                self._buffers[name] = None if tensor is None else _move(tensor, fn)
        return self

    # -- helpers

    def _set_spec(self, spec: KernelSpec) -> None:
        self.spec = spec
        self._dtype: torch.dtype = getattr(torch, spec.dtype)

    def _bind(self, kernel: Kernel | None) -> None:
        self.kernel = kernel
        self._impl = None if kernel is None else implementation(kernel, self.spec)

    def _pack(self, operands: Operands, spec: KernelSpec, device: torch.device, choose: bool = False) -> None:
        """Everything that may fail comes first, so that a failure leaves the module as it was."""
        kernel = self.kernel
        if choose or kernel is None:
            kernel = choose_kernel(self.layer_name, spec, device, self.backend)
        impl = implementation(kernel, spec)
        state = impl.pack(operands)
        self._set_spec(spec)
        self.kernel, self._impl = kernel, impl
        self._buffers.clear()
        self._buffers.update(state)

    def _numerics(self) -> Numerics:
        return cast(Numerics, load_target(self.scheme.numerics)(self.scheme.layer))


def _move(tensor: torch.Tensor, fn: Move) -> torch.Tensor:
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


def _args_text(spec: KernelSpec) -> str:
    """`` int4 asymmetric`` or `` float8 x float8 inputs``: the quant args in a few words."""
    weights, inputs = spec.weights, spec.inputs
    if weights is None:
        return ""
    text = f" {weights.type}{weights.num_bits}{'' if weights.symmetric else ' asymmetric'}"
    if inputs is not None:
        text += f" x {inputs.type}{inputs.num_bits} {'dynamic' if inputs.dynamic else 'static'} inputs"
    return text
