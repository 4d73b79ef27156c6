"""Records of the kernels for quantized inputs. Importing this imports no torch, no triton."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...registry.domains import between
from ...registry.kernels import Absent, Args, Kernel, Needs
from .requirements import SCALES, devices, needs

_HERE = "quantdispatch.backends.triton"
_ROW = {"tensor", "channel"}
#: of integer inputs
_BITS = between(2, 8)
_EXPONENT = {None, "uint8"}
#: of groups: a step of the matrix instructions for bytes is 32 columns
_WHOLE: dict[str, Any] = {"group%32": 0, "k%group": 0}


def _int(bits: Any, strategy: Any, dynamic: Any, **fields: Any) -> Args:
    return Args(type="int", num_bits=bits, strategy=strategy, dynamic=dynamic, scale_dtype=SCALES, **fields)


def _float(bits: Any, strategy: Any, dynamic: Any, **fields: Any) -> Args:
    fields = {"scale_dtype": SCALES, **fields}
    return Args(type="float", num_bits=bits, symmetric=True, strategy=strategy, dynamic=dynamic, **fields)


_INPUTS = {
    "int": (_int(_BITS, "token", True), _int(_BITS, "tensor", {True, False})),
    "float": (_float(8, "token", True), _float(8, "tensor", {True, False})),
}
_OUTPUTS = _int(_BITS, "tensor", False)


def _plain() -> Iterator[Needs]:
    """Weights with float scales, inputs with a scale for a token or for all."""
    integers, floats = between(1, 8), 8
    for where in devices():
        for kind, inputs in _INPUTS.items():
            for seen in inputs:
                for outputs in (Absent, _OUTPUTS) if kind == "int" else (Absent,):
                    yield needs(where, _int(integers, _ROW, False), seen, outputs=outputs)
                    yield needs(where, _int(integers, "group", False), seen, outputs=outputs, **_WHOLE)
        for seen in _INPUTS["float"]:
            yield needs(where, _float(floats, _ROW, False), seen)
            yield needs(where, _float(floats, "block", False, block_structure={(128, 128)}), seen)
        yield needs(
            where,
            _float(floats, "block", False, block_structure={(128, 128)}),
            _float(8, "group", True, group_size=128),
        )


def _small() -> Iterator[Needs]:
    """Floats in small groups, inputs fake-quantized in groups of their own."""
    nv = {"group_size": 16, "scale_dtype": {None, "float8_e4m3fn"}}
    mx: dict[str, Any] = {"group_size": 32}
    four, eight = (_float(bits, "group", True, scale_dtype="uint8", **mx) for bits in (4, 8))
    for where in devices():
        yield needs(
            where, _float(4, "tensor_group", False, **nv), _float(4, "tensor_group", "local", **nv), **{"k%16": 0}
        )
        for seen in (four, eight):
            yield needs(where, _float({4, 6}, "group", False, scale_dtype=_EXPONENT, **mx), seen, **{"k%group": 0})
        yield needs(where, _float(8, "group", False, scale_dtype="uint8", **mx), eight, **{"k%group": 0})


def _experts() -> Iterator[Needs]:
    """Weights alone. A layer's experts of this kernel are computed together, which those of others are not."""
    moe: dict[str, Any] = {"kind": {"moe"}}
    nv = {"group_size": 16, "scale_dtype": {None, "float8_e4m3fn"}}
    for where in devices():
        yield needs(where, _int(between(1, 8), _ROW, False), **moe)
        yield needs(where, _int(between(1, 8), "group", False), **_WHOLE, **moe)
        yield needs(where, _float(8, _ROW, False), **moe)
        yield needs(where, _float(4, "tensor_group", False, **nv), **{"k%16": 0}, **moe)
        mx = _float({4, 6}, "group", False, scale_dtype=_EXPONENT, group_size=32)
        yield needs(where, mx, **{"k%group": 0}, **moe)


def kernels() -> Iterator[Kernel]:
    yield Kernel(
        name="triton/experts",
        op="linear",
        rank=70,
        requires=tuple(_experts()),
        target=f"{_HERE}.experts:ExpertLinear",
        probe=f"{_HERE}.probes:device",
    )
    yield Kernel(
        name="triton/quantized",
        op="linear",
        rank=40,
        requires=(*_plain(), *_small()),
        target=f"{_HERE}.experts:ExpertLinear",
        probe=f"{_HERE}.probes:device",
    )
