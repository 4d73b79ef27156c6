"""One layer, bound to one kernel: what goes in, what has to come out, and how a difference is put into words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from ...registry.facts import KernelSpec
from ...registry.kernels import Kernel
from ...registry.lazy import load_target
from ...registry.operands import Operands
from ...registry.scheme import KernelImpl, LayerShape, Scheme
from . import diagnosis
from .checks import Nonconformance
from .layers import Layer
from .operands import random_operands
from .truth import Truth

#: fp8 of these schemes has exponents for scales even where the args do not say so
_EXPONENTS = "mxfp"


class Trial:
    """A layer as ``scheme`` hands it to a kernel. ``device``: where tensors are. ``computed``: what a kernel computes
    that deviates from the scheme; ``allow``: what its user allowed. ``op``: ``"dense"`` of a layer that stays what
    torch has, else the scheme's."""

    def __init__(
        self,
        layer: Layer,
        scheme: Scheme,
        device: str = "cpu",
        tolerance: float = 0.0,
        *,
        computed: Layer | None = None,
        allow: frozenset[str] = frozenset(),
        op: str | None = None,
    ) -> None:
        self.layer, self.scheme, self.device = layer, scheme, device
        self.tolerance, self.computed = tolerance, computed or layer
        self._allow, self._op = allow, op
        self.dtype: torch.dtype = getattr(torch, layer.dtype)

    @cached_property
    def shape(self) -> LayerShape | None:
        """N and K; ``None`` for a cache."""
        return None if self.spec_op == "kv_cache" else LayerShape(self.layer.n, self.layer.k, "dense")

    @property
    def spec_op(self) -> str:
        return self._op or self.scheme.kernel_spec(None, self.layer.dtype).op

    @property
    def by_row(self) -> bool:
        """Does a row's result depend on that row alone?"""
        inputs = self.computed.inputs
        return inputs is None or inputs.strategy != "tensor" or not inputs.dynamic

    @cached_property
    def spec(self) -> KernelSpec:
        """What the kernel is bound to."""
        names = self.scheme.tensor_names()[0] | ({"bias"} if self.layer.bias else set())
        return self.asked(self.scheme.kernel_spec(self.shape, self.layer.dtype, tensors=frozenset(names)))

    def asked(self, spec: KernelSpec) -> KernelSpec:
        """A scheme's spec, as it reaches the kernels."""
        return replace(spec, op=self.spec_op, allow=self._allow)

    @cached_property
    def numerics(self) -> Any:
        """The scheme's torch half."""
        return load_target(self.scheme.numerics)(self.scheme.layer)

    @cached_property
    def operands(self) -> Operands:
        """Random ones, on the device."""
        return moved(random_operands(self.layer, exponents=self.exponents), self.device)

    @property
    def exponents(self) -> bool:
        weights = self.layer.weights
        return weights is not None and weights.type == "float" and _EXPONENTS in self.scheme.name

    @cached_property
    def truth(self) -> Truth:
        """The layer by its definition, for words about what is wrong."""
        inputs = self.computed.inputs
        grouped = inputs is not None and inputs.strategy == "group" and _EXPONENTS in self.scheme.name
        mx = grouped and inputs is not None and self.scheme.name != "w4a8_mxfp4" and inputs.scale_dtype is None
        return Truth(self.computed, random_operands(self.layer, exponents=self.exponents), mx_inputs=mx)

    def impl(self, kernel: Kernel) -> KernelImpl:
        """The kernel, bound."""
        return cast(KernelImpl, load_target(kernel.target)(self.spec))

    # -- what goes in

    def inputs(self, rows: int = 5, seed: int = 0) -> Tensor:
        """x [rows, K]; of an embedding indices [rows]; of a cache states [rows, heads, 3, K]."""
        random = torch.Generator().manual_seed(1000 + seed)
        if self.spec_op == "embedding":
            return torch.randint(self.layer.n, (rows,), generator=random).to(self.device)
        shape = (rows, self.layer.n, 3, self.layer.k) if self.spec_op == "kv_cache" else (rows, self.layer.k)
        x = torch.randn(shape, generator=random)
        x[-1] *= 3
        return x.to(self.dtype).to(self.device)

    # -- what comes out: whatever a kernel gives is looked at before it is used

    def pack(self, impl: Any, operands: Operands | None = None) -> dict[str, Tensor]:
        """The kernel's state. Raises ``Nonconformance`` where it is no dict of tensors by name."""
        state = impl.pack(self.operands if operands is None else operands)
        if not isinstance(state, dict):
            raise Nonconformance(f"pack gives {type(state).__name__}, required a dict of tensors by name")
        wrong = [f"{name!r}: {type(value).__name__}" for name, value in state.items() if not _is_buffer(name, value)]
        if wrong:
            raise Nonconformance(
                f"pack gives {', '.join(wrong)}: required tensors, by names that a module can give them"
            )
        return state

    def unpack(self, impl: Any, state: dict[str, Tensor]) -> Operands:
        """What the kernel gives back of ``state``. Raises ``Nonconformance`` where it is no ``Operands`` of tensors."""
        found = impl.unpack(state)
        if not isinstance(found, Operands):
            raise Nonconformance(f"unpack gives {type(found).__name__}, required Operands")
        wrong = [f"{name} as {type(v).__name__}" for name, v in parts_of(found).items() if not isinstance(v, Tensor)]
        if wrong:
            raise Nonconformance(f"unpack gives {', '.join(wrong)}, required tensors")
        return found

    def apply(self, impl: Any, x: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """The kernel's result; of a cache: all its parts, quantized and read again. Raises ``Nonconformance`` where it
        is no tensor."""
        with torch.no_grad():
            if self.spec_op != "kv_cache":
                return _tensor("apply", impl.apply(x, state))
            codes = [(part, _tensor("quantize", impl.quantize(part, x, state))) for part in self.parts]
            return torch.stack([_tensor("dequantize", impl.dequantize(part, c, state)) for part, c in codes])

    @property
    def parts(self) -> str:
        """Of a cache: keys, values, and of attention queries too."""
        return "kvq" if self.layer.kind == "attention" else "kv"

    def expected(self, x: Tensor, operands: Operands | None = None) -> Tensor:
        """What the scheme's own numerics make of x, on the CPU; where a kernel deviates from them, what it says."""
        x = x.cpu()
        if self.computed != self.layer:
            return self.truth.output(x).to(self.dtype)
        o = moved(operands or self.operands, "cpu")
        with torch.no_grad():
            if self.spec_op == "kv_cache":
                codes = [(part, self.numerics.quantize(part, x, o)) for part in self.parts]
                return torch.stack([self.numerics.dequantize(part, c, o, self.dtype) for part, c in codes])
            if self.spec_op == "embedding":
                return cast(Tensor, self.numerics.dequantize(o)[x].to(self.dtype))
            return cast(Tensor, self.numerics.forward(x, o))

    def compare(self, x: Tensor, y: Tensor, what: str = "", tolerance: float | None = None) -> None:
        """Raises ``Nonconformance``, with what seems to be wrong, where y is not what is expected of x."""
        expected, y = self.expected(x), _tensor("the call", y).detach().cpu()
        limit = self.tolerance if tolerance is None else tolerance
        where = f" ({what})" if what else ""
        if y.shape != expected.shape:
            turned = y.ndim == 2 and y.t().shape == expected.shape
            raise Nonconformance(
                f"the output is {list(y.shape)}, required {list(expected.shape)}{where}"
                + (": it is transposed" if turned else "")
            )
        if y.dtype != expected.dtype:
            raise Nonconformance(f"the output is {y.dtype}, required {expected.dtype}{where}")
        # few numbers have no mean error to speak of
        limit *= 3 if y.numel() < 64 else 1
        if self._fits(y, expected, limit):
            return
        found = None
        if self.spec_op != "kv_cache" and y.isfinite().all():
            found = diagnosis.of_output(self.truth, x.cpu(), y, max(limit, 1e-6))
        looks = f"; it looks as if {_clause(found)}" if found else ""
        raise Nonconformance(
            f"the output differs by {diagnosis.error(y, expected):.2e} of its norm, at most {limit:.1e}{where}{looks}"
        )

    def _fits(self, y: Tensor, expected: Tensor, limit: float) -> bool:
        step = self.truth.step if self.layer.outputs is not None else None
        if step is None:
            return diagnosis.close(y, expected, limit) or bool((y == expected).all())
        # where two sums a rounding apart fall on either side of a boundary, quantized outputs differ by a step
        off = (y.double() - expected.double()).abs()
        return bool((off > step / 2).double().mean() < 1e-2 and off.max() < 1.1 * step)


def _tensor(method: str, given: object) -> Tensor:
    if not isinstance(given, Tensor):
        raise Nonconformance(f"{method} gives {type(given).__name__}, required a tensor")
    return given


def _is_buffer(name: object, value: object) -> bool:
    return isinstance(name, str) and bool(name) and "." not in name and isinstance(value, Tensor)


def _clause(words: str) -> str:
    return words.replace(": ", " (", 1) + ")" if ": " in words else words


def moved(operands: Operands, device: str) -> Operands:
    """The operands on ``device``."""

    def move(value: Any) -> Any:
        return value.to(device) if isinstance(value, Tensor) else value

    values = {field.name: move(getattr(operands, field.name)) for field in fields(Operands) if field.name != "extra"}
    return Operands(**values, extra={name: move(value) for name, value in operands.extra.items()})


def parts_of(operands: Operands) -> dict[str, Tensor]:
    """Every tensor by its name, those of ``extra`` as ``extra.name``."""
    named = {field.name: getattr(operands, field.name) for field in fields(Operands) if field.name != "extra"}
    named |= {f"extra.{name}": value for name, value in operands.extra.items()}
    return {name: value for name, value in named.items() if value is not None}


def difference(observed: Operands, expected: Operands) -> str | None:
    """In words the first part that differs in a bit, a dtype or a shape; ``None`` where none does."""
    return tensors_difference(parts_of(observed), parts_of(expected))


def tensors_difference(observed: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str | None:
    """The same of tensors by name."""
    for name in sorted(expected.keys() | observed.keys()):
        if name not in observed:
            return f"{name} is lost"
        if name not in expected:
            return f"{name} is there, and was not given"
        a, b = observed[name].cpu(), expected[name].cpu()
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{name} is {a.dtype} {list(a.shape)}, required {b.dtype} {list(b.shape)}"
        if not same_bits(a, b):
            return f"{name} has other values{_guess(name, a, b)}"
    return None


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal bit for bit: NaN equals itself, and zeros have signs."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return not a.numel() or torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)))


def _guess(name: str, observed: Tensor, expected: Tensor) -> str:
    if expected.ndim != 2:
        return ""
    if name == "codes":
        integer = not expected.is_floating_point()
        for words, wrong in diagnosis.code_mistakes(expected.float(), None):
            if torch.equal(observed.float(), wrong.float()):
                return f": {words}"
        if integer and torch.equal(observed, -expected - 1):
            return ": bits are inverted"
    else:
        words = "scales are transposed" if "scale" in name else "zero points are taken along the wrong axis"
        if any(torch.equal(observed.float(), wrong.float()) for wrong in diagnosis.turns(expected)):
            return f": {words}"
    return ""
