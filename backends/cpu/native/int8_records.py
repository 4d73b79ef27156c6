"""The record of the native kernel for quantized activations. Importing this is cheap, like torch's records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ....registry.domains import between
from ....registry.kernels import Absent, Args, Kernel, Needs
from .records import compiled

_HERE = "quantdispatch.backends.cpu.native"
_FLOATS = {"bfloat16", "float16", "float32"}
#: an exponent in a byte is a scale of another kind
_SCALES = {None, *_FLOATS}
_INT: dict[str, Any] = {"type": "int", "scale_dtype": _SCALES}
_SEEN = {**_INT, "num_bits": between(2, 8)}
_TENSOR = Args(**_SEEN, strategy="tensor", dynamic={True, False})
#: a scale a group of columns is left to ``cpu/native``
_INPUTS = (Args(**_SEEN, strategy="token", dynamic=True), _TENSOR)
_OUTPUTS = Args(**_SEEN, strategy="tensor", dynamic=False)


def _boxes() -> Iterator[Needs]:
    stored = {**_INT, "num_bits": between(1, 8), "dynamic": False}
    for inputs in _INPUTS:
        for outputs in (Absent, _OUTPUTS):
            layer: dict[str, Any] = {
                "device": "cpu", "kind": {"linear", "lm_head", "moe"}, "inputs": inputs, "outputs": outputs,
            }  # fmt: skip
            whole = Args(**stored, strategy={"tensor", "channel", "block"})
            yield Needs({"dtype": _FLOATS, "g_idx": False}, weights=whole, **layer)
            grouped: dict[str, Any] = {"dtype": _FLOATS, "g_idx": {True, False}, "k%group": 0}
            yield Needs(grouped, weights=Args(**stored, strategy="group"), **layer)


def _allowed_boxes() -> Iterator[Needs]:
    """Weight-only layers of a user who lets their inputs be quantized."""
    stored = {**_INT, "num_bits": between(1, 8), "dynamic": False}
    layer: dict[str, Any] = {
        "device": "cpu", "kind": {"linear", "lm_head", "moe"}, "inputs": Absent, "outputs": Absent,
    }  # fmt: skip
    asked: dict[str, Any] = {"dtype": _FLOATS, "allow.int8-activations": True}
    whole = Args(**stored, strategy={"tensor", "channel", "block"})
    yield Needs({**asked, "g_idx": False}, weights=whole, **layer)
    yield Needs({**asked, "g_idx": {True, False}, "k%group": 0}, weights=Args(**stored, strategy="group"), **layer)


def kernels() -> Iterator[Kernel]:
    """``cpu/native_int8``, above ``cpu/native``, which quantizes with torch and multiplies floats."""
    yield Kernel(
        name="cpu/native_int8_allowed",
        op="linear",
        rank=120,
        requires=tuple(compiled(_allowed_boxes())),
        target=f"{_HERE}.int8:AllowedInt8Linear",
        probe=f"{_HERE}.int8:probe",
        deviations=("inputs are quantized to int8, one scale a token",),
    )
    yield Kernel(
        name="cpu/native_int8",
        op="linear",
        rank=110,
        requires=tuple(compiled(_boxes())),
        target=f"{_HERE}.int8:NativeInt8Linear",
        probe=f"{_HERE}.int8:probe",
    )
