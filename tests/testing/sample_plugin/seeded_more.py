"""More kernels with one fault each: in numbers, in memory, in manners, and of fused experts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from seeded_faults import Sound
from torch import Tensor

from quantdispatch.registry.facts import KernelSpec
from quantdispatch.registry.operands import Operands

# -- numbers


class BiasTwice(Sound):
    def finish(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        return super().finish(y, dtype)

    def apply(self, x: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        twice = {**state, "bias": state["bias"] * 2} if "bias" in state else state
        return super().apply(x, twice)


class TailGroup(Sound):
    """The last group takes the scale of the one before it."""

    def scale(self, state: Mapping[str, Tensor]) -> Tensor:
        scale = super().scale(state)
        return torch.cat((scale[:, :-1], scale[:, -2:-1]), 1) if scale.shape[1] > 1 else scale


class InputScaleIgnored(Sound):
    def inputs(self, x: Tensor) -> Tensor:
        scale = (x.float().abs().amax(-1, keepdim=True) / 127).clamp(min=1e-30)
        return super().inputs(x) if self.spec.inputs is None else self.rounded(x.float() / scale).double()


class NanInputsLost(Sound):
    def inputs(self, x: Tensor) -> Tensor:
        return super().inputs(torch.nan_to_num(x))


class NanCodesLost(Sound):
    """The code of NaN is read as a large number; to be registered for fp8."""

    def codes(self, state: Mapping[str, Tensor]) -> Tensor:
        return torch.nan_to_num(super().codes(state), nan=480.0)


class RowsMixed(Sound):
    """Rows share one scale, that of the largest."""

    def inputs(self, x: Tensor) -> Tensor:
        seen = super().inputs(x)
        return seen + 0 * seen.sum() if seen.ndim == 2 else seen


class NarrowSums(Sound):
    """Sums are kept in a type that ends at 65504, a 16th too large."""

    def finish(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        return ((y * 16).half().double() / 16).to(dtype) if y.abs().amax().nan_to_num() > 4000 else y.to(dtype)


class FlatRows(Sound):
    """Leading dimensions are lost where there are three."""

    def finish(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        return y.to(dtype).flatten(0, -2) if y.ndim > 3 else y.to(dtype)


# -- memory


class ChangesState(Sound):
    def apply(self, x: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        y = super().apply(x, state)
        state["scale"].mul_(1.01)
        return y


class KeepsInputs(Sound):
    """Hangs on to what it was called with, in its class."""

    kept: ClassVar[list[Tensor]] = []

    def inputs(self, x: Tensor) -> Tensor:
        self.kept.append(x)
        return super().inputs(x)


class OneResult(Sound):
    """Results of one shape lie in one memory."""

    memory: ClassVar[dict[Any, Tensor]] = {}

    def finish(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        place = self.memory.setdefault((y.shape, dtype), torch.empty(y.shape, dtype=dtype))
        return place.copy_(y)


class View(Sound):
    """Keeps a view of something much larger."""

    def pack(self, operands: Operands) -> dict[str, Tensor]:
        state = super().pack(operands)
        whole = torch.zeros(operands.codes.numel() + (1 << 18), dtype=torch.int8)
        whole[: operands.codes.numel()] = operands.codes.flatten()
        return state | {"codes": whole[: operands.codes.numel()].view(operands.codes.shape)}


class Unwritten(Sound):
    """Adds up in memory that it did not clear."""

    def finish(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        made = torch.empty(y.shape, dtype=dtype)
        return made.copy_(y) if made.nan_to_num(nan=1e9).abs().amax(-1).nan_to_num().sum() < 1e8 else made


# -- manners


class Strange(Exception):
    """Has no words."""

    def __str__(self) -> str:
        raise ValueError("no words")


class RaisesStrangely(Sound):
    def apply(self, x: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        raise Strange


class EndsTheProcess(Sound):
    def apply(self, x: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        sys.exit("tired")


class GivesNone(Sound):
    def apply(self, x: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        super().apply(x, state)
        return None  # type: ignore[return-value]


class GivesPair(Sound):
    def apply(self, x: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        return super().apply(x, state), None  # type: ignore[return-value]


class PacksNone(Sound):
    def pack(self, operands: Operands) -> dict[str, Tensor]:
        super().pack(operands)
        return None  # type: ignore[return-value]


class PacksNumbers(Sound):
    def pack(self, operands: Operands) -> dict[str, Tensor]:
        return super().pack(operands) | {"bits": 4}  # type: ignore[dict-item]


class UnpacksDict(Sound):
    def unpack(self, state: Mapping[str, Tensor]) -> Operands:
        return dict(state)  # type: ignore[return-value]


class NotPickled(Sound):
    def __init__(self, spec: KernelSpec) -> None:
        super().__init__(spec)
        self.function: Callable[[], int] = lambda: 1


# -- experts


class SoundExperts(Sound):
    """All experts one by one, added up in float64."""

    @classmethod
    def fuse(cls, first: Sequence[Sequence[Any]], last: Sequence[Any], activation: str) -> Any:
        acts = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}
        if activation not in acts or len({len(own) for own in first}) != 1:
            return None
        count = len(last)

        def run(x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
            total = torch.zeros(x.shape, dtype=torch.float64)
            for number in range(count):
                tokens, places = torch.where(index == number)
                own = cls.expert(number, count)
                gate, *up = [impl.apply(x[tokens], state) for impl, state in cls.order(first[own])]
                hidden = acts[activation](gate.float()) * (up[0].float() if up else 1)
                impl, state = last[own]
                y = impl.apply(hidden.to(x.dtype), state).double()
                total.index_add_(0, tokens, y * cls.share(weights[tokens, places, None].double()))
            return total.to(cls.given(x))

        return run

    @staticmethod
    def expert(number: int, count: int) -> int:
        return number

    @staticmethod
    def order(first: Sequence[Any]) -> Sequence[Any]:
        return first

    @staticmethod
    def share(weights: Tensor) -> Tensor:
        return weights

    @staticmethod
    def given(x: Tensor) -> torch.dtype:
        return x.dtype


class ExpertsReversed(SoundExperts):
    @staticmethod
    def expert(number: int, count: int) -> int:
        return count - 1 - number


class GateAndUpExchanged(SoundExperts):
    @staticmethod
    def order(first: Sequence[Any]) -> Sequence[Any]:
        return first[::-1]


class ExpertsWeightsIgnored(SoundExperts):
    @staticmethod
    def share(weights: Tensor) -> Tensor:
        return torch.ones_like(weights)


class ExpertsWide(SoundExperts):
    @staticmethod
    def given(x: Tensor) -> torch.dtype:
        return torch.float32


class ExpertsElsewhereTaken(SoundExperts):
    """An expert that lives elsewhere is taken for the first or the last."""

    @classmethod
    def fuse(cls, first: Sequence[Sequence[Any]], last: Sequence[Any], activation: str) -> Any:
        run = super().fuse(first, last, activation)
        return run and (lambda x, index, weights: run(x, index.clamp(0, len(last) - 1), weights))


class FusesAnything(SoundExperts):
    """Takes an activation that it does not know for silu."""

    @classmethod
    def fuse(cls, first: Sequence[Sequence[Any]], last: Sequence[Any], activation: str) -> Any:
        known = activation if activation in ("gelu", "gelu_tanh") else "silu"
        return super().fuse(first, last, known)


class FusesIntoNumber(SoundExperts):
    @classmethod
    def fuse(cls, first: Sequence[Sequence[Any]], last: Sequence[Any], activation: str) -> Any:
        return 7


class ChangesRouting(SoundExperts):
    @classmethod
    def fuse(cls, first: Sequence[Sequence[Any]], last: Sequence[Any], activation: str) -> Any:
        run = super().fuse(first, last, activation)
        return run and (lambda x, index, weights: (run(x, index, weights), weights.mul_(2))[0])
