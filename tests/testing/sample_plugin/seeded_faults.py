"""A kernel and a scheme that are right, and others that each have one fault: what the conformance kit must find."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from quantdispatch import Absent, Args, QuantDispatchError, Rule, When
from quantdispatch.registry.facts import KernelSpec
from quantdispatch.registry.kernels import Kernel, Needs
from quantdispatch.registry.operands import Operands
from quantdispatch.registry.scheme import LayerShape
from quantdispatch.schemes.reference.integer import IntegerNumerics
from quantdispatch.schemes.wna16_int import WNA16Int

_NAMES = [field.name for field in fields(Operands) if field.name != "extra"]
TOKEN = Args(type="int", num_bits=8, strategy="token", dynamic=True, symmetric=True)
CAPABILITIES = {"zero-points", "bias", "odd-shapes", "bfloat16", "float32", "dynamic-inputs", "experts"}


class Sound:
    """Integer weights by channel or group, inputs as they are or int8 by token."""

    def __init__(self, spec: KernelSpec) -> None:
        self.spec = spec

    def pack(self, operands: Operands) -> dict[str, Tensor]:
        state = {name: value for name in _NAMES if (value := getattr(operands, name)) is not None}
        return state | {f"extra_{name}": value for name, value in operands.extra.items()}

    def unpack(self, state: Mapping[str, Tensor]) -> Operands:
        extra = {name.removeprefix("extra_"): value for name, value in state.items() if name.startswith("extra_")}
        return Operands(**{name: state.get(name) for name in _NAMES}, extra=extra)

    def codes(self, state: Mapping[str, Tensor]) -> Tensor:
        return state["codes"].double()

    def scale(self, state: Mapping[str, Tensor]) -> Tensor:
        return state["scale"].double()

    def zero_point(self, state: Mapping[str, Tensor]) -> Tensor:
        zero = state.get("zero_point")
        return torch.zeros_like(state["scale"], dtype=torch.float64) if zero is None else zero.double()

    def weight(self, state: Mapping[str, Tensor]) -> Tensor:
        scale, codes = self.scale(state), self.codes(state)
        grouped = codes.reshape(*scale.shape, -1) - self.zero_point(state).unsqueeze(-1)
        return (grouped * scale.unsqueeze(-1)).view(codes.shape)

    def rounded(self, x: Tensor) -> Tensor:
        return x.round()

    def inputs(self, x: Tensor) -> Tensor:
        if self.spec.inputs is None:
            return x.double()
        scale = (x.float().abs().amax(-1, keepdim=True) / 127).clamp(min=1e-30)
        return self.rounded(x.float() / scale).double() * scale.double()

    def finish(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        return y.to(dtype)

    def apply(self, x: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        if x.requires_grad and torch.is_grad_enabled():
            raise QuantDispatchError("no gradient")
        y = self.inputs(x) @ self.weight(state).T
        return self.finish(y if "bias" not in state else y + state["bias"].double(), x.dtype)


class ZeroPointAxis(Sound):
    def zero_point(self, state: Mapping[str, Tensor]) -> Tensor:
        zero = super().zero_point(state)
        return zero.t().reshape(zero.shape) if zero.shape[1] > 1 else zero.roll(1, 0)


class SwappedNibble(Sound):
    def codes(self, state: Mapping[str, Tensor]) -> Tensor:
        codes = super().codes(state)
        whole = codes.shape[1] // 2 * 2
        swapped = codes[:, :whole].reshape(codes.shape[0], -1, 2).flip(-1).flatten(1)
        return torch.cat((swapped, codes[:, whole:]), 1)


class ScaleTransposed(Sound):
    def scale(self, state: Mapping[str, Tensor]) -> Tensor:
        scale = super().scale(state)
        return scale.t().reshape(scale.shape) if scale.shape[1] > 1 else scale.roll(1, 0)


class BiasDropped(Sound):
    def apply(self, x: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        return super().apply(x, {name: value for name, value in state.items() if name != "bias"})


class RoundsUp(Sound):
    def rounded(self, x: Tensor) -> Tensor:
        return (x + 0.5).floor()


class Truncates(Sound):
    def rounded(self, x: Tensor) -> Tensor:
        return x.trunc()


class ResultCut(Sound):
    """Results are cut off, and not rounded, to bfloat16."""

    def finish(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        if dtype != torch.bfloat16:
            return y.to(dtype)
        return (y.float().view(torch.int32) & -65536).view(torch.float32).to(dtype)


class OutputTransposed(Sound):
    def finish(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        return y.to(dtype).t().reshape(y.shape) if y.ndim == 2 else y.to(dtype)


class OtherShape(Sound):
    def finish(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        return y.to(dtype).t() if y.ndim == 2 else y.to(dtype)


class OutputWide(Sound):
    def finish(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        return y.float()


class SharedState(Sound):
    """The last layer that was packed is everyone's."""

    last: ClassVar[dict[str, Tensor]] = {}

    def pack(self, operands: Operands) -> dict[str, Tensor]:
        state = super().pack(operands)
        type(self).last = state
        return state

    def apply(self, x: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        return super().apply(x, self.last)


class HoldsTensors(Sound):
    def pack(self, operands: Operands) -> dict[str, Tensor]:
        self.kept = operands.codes
        return super().pack(operands)

    def __init__(self, spec: KernelSpec) -> None:
        super().__init__(spec)
        self.scratch = torch.zeros(4)


class LossyUnpack(Sound):
    def unpack(self, state: Mapping[str, Tensor]) -> Operands:
        operands = super().unpack(state)
        operands.scale = operands.scale.half()
        return operands


class ForgetsStrangers(Sound):
    def unpack(self, state: Mapping[str, Tensor]) -> Operands:
        operands = super().unpack(state)
        operands.extra = {}
        return operands


class ChangesInput(Sound):
    def inputs(self, x: Tensor) -> Tensor:
        seen = super().inputs(x)
        x.mul_(1.5)
        return seen


class TakesGradients(Sound):
    def apply(self, x: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        return super().apply(x.detach(), state)


class OnlyRows(Sound):
    """Takes x as memory in rows of K, whatever its strides."""

    def inputs(self, x: Tensor) -> Tensor:
        return super().inputs(torch.as_strided(x, x.shape, x.contiguous().stride()))


class Unsteady(Sound):
    def finish(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        return (y * (1 + 1e-3 * torch.rand(y.shape, dtype=torch.float64))).to(dtype)


class SignsLost(Sound):
    def codes(self, state: Mapping[str, Tensor]) -> Tensor:
        half = 1 << (self.spec.weights.num_bits - 1)  # type: ignore[union-attr]
        return super().codes(state) + half


def record(kernel: type, **wider: Any) -> Kernel:
    """A kernel's record, in a backend of its name; ``wider`` changes what it requires of weights."""
    weights = {"type": "int", "num_bits": {4, 8}, "strategy": {"channel", "group"}, "dynamic": False, **wider}
    given: dict[str, Any] = {"g_idx": False, "k%group": 0} if "actorder" not in wider else {"k%group": 0}
    boxes = [
        Needs(
            given, device="cpu", kind={"linear", "moe"}, dtype={"bfloat16", "float32"}, inputs=side, outputs=Absent,
            weights=Args(**{name: value for name, value in weights.items() if name != "actorder"}),
        )
        for side in (Absent, TOKEN)
    ]  # fmt: skip
    return Kernel(f"{kernel.__name__}/linear", op="linear", requires=boxes, target=f"{__name__}:{kernel.__name__}")


# -- schemes: what ``pack-quantized`` stores, under another format's name


class SoundScheme(WNA16Int):
    numerics: ClassVar[str] = f"{__name__}:SoundNumerics"


class SoundNumerics(IntegerNumerics):
    """As it should be."""


class CodesSwapped(SoundNumerics):
    def _codes(self, tensors: Mapping[str, Any], shape: LayerShape, name: str) -> Tensor:
        codes = super()._codes(tensors, shape, name)
        return codes.view(codes.shape[0], -1, 2).flip(-1).flatten(1) if codes.shape[1] % 2 == 0 else codes.flip(1)


class ZerosTurned(SoundNumerics):
    def _zero_point(self, *given: Any) -> Tensor:
        zero = super()._zero_point(*given)
        return zero.t().reshape(zero.shape) if zero.shape[1] > 1 else zero.roll(1, 0)


class ScalesTurned(SoundNumerics):
    def operands(self, tensors: Mapping[str, Any], shape: LayerShape, name: str) -> Operands:
        read = super().operands(tensors, shape, name)
        turned = read.scale.t().reshape(read.scale.shape) if read.scale.shape[1] > 1 else read.scale.roll(1, 0)
        read.scale = turned.contiguous()
        return read


class NoBias(SoundNumerics):
    def forward(self, x: Tensor, operands: Operands) -> Tensor:
        y = super().forward(x, operands)
        return y if operands.bias is None else y - operands.bias.to(y.dtype)


class ZerosForgotten(SoundNumerics):
    def dequantize(self, operands: Operands, dtype: Any | None = None) -> Tensor:
        return super().dequantize(Operands(operands.codes, operands.scale, g_idx=operands.g_idx), dtype)


class AnyScale(SoundNumerics):
    def operands(self, tensors: Mapping[str, Any], shape: LayerShape, name: str) -> Operands:
        good = torch.nan_to_num(tensors["weight_scale"].float()).abs().clamp(min=1e-6).to(tensors["weight_scale"].dtype)
        return super().operands({**tensors, "weight_scale": good}, shape, name)


class LastLayer(SoundNumerics):
    last: ClassVar[list[Operands]] = []

    def operands(self, tensors: Mapping[str, Any], shape: LayerShape, name: str) -> Operands:
        read = super().operands(tensors, shape, name)
        self.last[:] = [read]
        return read

    def forward(self, x: Tensor, operands: Operands) -> Tensor:
        return super().forward(x, self.last[0])


class StoresOtherwise(SoundNumerics):
    def stored(self, operands: Operands, shape: LayerShape) -> dict[str, Any]:
        return {**super().stored(operands, shape), "weight_scale": operands.scale.float()}


def scheme_of(numerics: type) -> type[WNA16Int]:
    """A scheme with this torch half, to be found by its name in this module."""
    name = f"{numerics.__name__}Scheme"
    made = type(name, (SoundScheme,), {"numerics": f"{__name__}:{numerics.__name__}", "__module__": __name__})
    globals()[name] = made
    return made


def rule(numerics: type, **wider: Any) -> Rule:
    """A rule for a format of the numerics' name; ``wider`` changes what it takes of weights."""
    scheme, name = scheme_of(numerics), numerics.__name__
    args = {"type": "int", "num_bits": 4, "strategy": {"channel", "group"}, "dynamic": False, "actorder": None, **wider}
    when = When(kind="linear", format=name.lower(), weights=Args(**args), inputs=Absent, outputs=Absent)
    return Rule(name, when=when, scheme=f"{__name__}:{scheme.__name__}")
