"""Kernels on torch's own CPU ops. docs/cpu-backend.md says what each needs and why.

Importing this is cheap: records only, the kernels themselves are imported when a layer is bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...registry.domains import between
from ...registry.kernels import Absent, Args, Kernel, Needs

#: a ``moe`` layer is one projection of one expert, and computed like any other
KINDS = {"linear", "lm_head", "moe"}
ROW = {"tensor", "channel"}
FLOATS = {"bfloat16", "float16", "float32"}
#: an exponent in a byte is a scale of another kind
SCALES = {None, *FLOATS}

_INT8_TOKEN = Args(type="int", num_bits=8, strategy="token", dynamic=True, scale_dtype=SCALES)
_INT8_TENSOR = Args(type="int", num_bits=8, strategy="tensor", dynamic={True, False}, scale_dtype=SCALES)
INT8_INPUTS = (_INT8_TOKEN, _INT8_TENSOR)


def _needs(weights: Args, inputs: Any, **fields: Any) -> Needs:
    fields = {"dtype": "bfloat16", "g_idx": False, **fields}
    return Needs(fields, device="cpu", kind=KINDS, weights=weights, inputs=inputs, outputs=Absent)


def _int(strategy: Any, **fields: Any) -> Args:
    return Args(type="int", dynamic=False, strategy=strategy, scale_dtype=SCALES, **fields)


def _fp8(strategy: Any, dynamic: Any) -> Args:
    return Args(type="float", num_bits=8, symmetric=True, strategy=strategy, dynamic=dynamic, scale_dtype=SCALES)


def _int4() -> Iterator[Needs]:
    for inputs in (Absent, *INT8_INPUTS):
        sizes = {"n%16": 0, "k%32": 0}
        yield _needs(_int(ROW, num_bits=between(2, 4)), inputs, **sizes)
        grouped = _int("group", num_bits=between(2, 4))
        yield _needs(grouped, inputs, **sizes, **{"group%32": 0, "k%group": 0, "g_idx": {True, False}})


def _w8a8(bits: Any, **fields: Any) -> tuple[Needs, ...]:
    return tuple(_needs(_int(ROW, num_bits=bits), inputs, dtype=FLOATS, **fields) for inputs in INT8_INPUTS)


def _exact_u8s8() -> Iterator[Needs]:
    """Where the u8 x s8 product sums in 32 bits; elsewhere x86 saturates in 16 (see u8s8.py). The probe has the last
    word, this lets a plan say so without one."""
    for instructions in ("isa.avx512_vnni", "isa.avx_vnni", "isa.amx_int8"):
        yield from _w8a8(between(2, 8), **{instructions: True})
    yield from _w8a8(between(2, 8), arch={"aarch64", "arm64"})


def _dequant() -> Iterator[Needs]:
    for inputs in (Absent, *INT8_INPUTS):
        yield _needs(_int(ROW, num_bits=between(2, 8)), inputs, dtype=FLOATS)
        grouped = _int("group", num_bits=between(2, 8))
        yield _needs(grouped, inputs, dtype=FLOATS, g_idx={True, False}, **{"k%group": 0})
    for inputs in (Absent, _fp8("token", True), _fp8("tensor", {True, False}), _fp8("group", True)):
        yield _needs(_fp8(ROW | {"block"}, False), inputs, dtype=FLOATS)


def kernels() -> Iterator[Kernel]:
    """The records, best first."""
    here = "quantdispatch.backends.cpu"
    yield Kernel(
        name="cpu/int4_torch",
        op="linear",
        rank=90,
        requires=_int4(),
        target=f"{here}.int4:Int4Linear",
        probe=f"{here}.probes:int4",
    )
    yield Kernel(
        name="cpu/int8_torch",
        op="linear",
        rank=80,
        requires=(
            # with zero points only where code - zero point fits int8
            _needs(_int(ROW, num_bits=between(2, 8), symmetric=True), Absent, **{"k%16": 0}),
            _needs(_int(ROW, num_bits=between(2, 7), symmetric=False), Absent, **{"k%16": 0}),
        ),
        target=f"{here}.int8:Int8Linear",
        probe=f"{here}.probes:int8",
    )
    yield Kernel(
        name="cpu/w8a8_onednn",
        op="linear",
        rank=70,
        requires=_exact_u8s8(),
        target=f"{here}.w8a8:OneDnnLinear",
        probe=f"{here}.probes:u8s8_8bit",
    )
    yield Kernel(
        name="cpu/w7a8_onednn",
        op="linear",
        rank=60,
        requires=_w8a8(between(2, 7)),
        target=f"{here}.w8a8:OneDnnLinear",
        probe=f"{here}.probes:u8s8_7bit",
    )
    yield Kernel(
        name="cpu/w8a8_torch",
        op="linear",
        rank=50,
        requires=_w8a8(between(2, 8)),
        target=f"{here}.w8a8:W8A8Linear",
        # For one token it uses the int8 op.
        probe=f"{here}.probes:int8",
    )
    yield Kernel(
        name="cpu/dequant",
        op="linear",
        rank=10,
        requires=_dequant(),
        target=f"{here}.dequant:DequantLinear",
    )
