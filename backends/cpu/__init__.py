"""Kernels for the CPU: the package's own in C++ (``native``), and those on torch's ops, which serve where the package
was built without a compiler. docs/cpu-backend.md says what each needs and why.

Importing this is cheap: records only, the kernels themselves are imported when a layer is bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...registry.domains import between, not_in
from ...registry.kernels import Absent, Args, Kernel, Needs
from .native.dense_record import kernels as native_dense
from .native.int8_records import kernels as native_int8
from .native.records import linear as native_linear

#: a ``moe`` layer is one projection of one expert, and computed like any other
KINDS = {"linear", "lm_head", "moe"}
ROW = {"tensor", "channel"}
FLOATS = {"bfloat16", "float16", "float32"}
#: an exponent in a byte is a scale of another kind
SCALES = {None, *FLOATS}

#: of integer inputs: codes of up to 8 bits are exact in bf16
INPUT_BITS = between(2, 8)
_INT_TOKEN = Args(type="int", num_bits=INPUT_BITS, strategy="token", dynamic=True, scale_dtype=SCALES)
_INT_TENSOR = Args(type="int", num_bits=INPUT_BITS, strategy="tensor", dynamic={True, False}, scale_dtype=SCALES)
_INT_GROUP = Args(type="int", num_bits=INPUT_BITS, strategy="group", dynamic=True, scale_dtype=SCALES)
INT_INPUTS = (_INT_TOKEN, _INT_TENSOR)
_INT_OUTPUTS = Args(type="int", num_bits=INPUT_BITS, strategy="tensor", dynamic=False, scale_dtype=SCALES)


def _needs(weights: Args, inputs: Any, **fields: Any) -> Needs:
    fields = {"dtype": "bfloat16", "g_idx": False, "outputs": Absent, **fields}
    return Needs(fields, device="cpu", kind=KINDS, weights=weights, inputs=inputs)


def _int(strategy: Any, **fields: Any) -> Args:
    return Args(type="int", dynamic=False, strategy=strategy, scale_dtype=SCALES, **fields)


def _fp8(strategy: Any, dynamic: Any, **fields: Any) -> Args:
    fields = {"scale_dtype": SCALES, **fields}
    return Args(type="float", num_bits=8, symmetric=True, strategy=strategy, dynamic=dynamic, **fields)


FP8_INPUTS = (_fp8("token", True), _fp8("tensor", {True, False}))
_FP8_GROUP = _fp8("group", True)


def _int4() -> Iterator[Needs]:
    for inputs in (Absent, *INT_INPUTS, *FP8_INPUTS):
        sizes: dict[str, Any] = {"n%16": 0, "k%32": 0}
        yield _needs(_int(ROW, num_bits=between(2, 4)), inputs, **sizes)
        sizes |= {"group%32": 0, "k%group": 0, "g_idx": {True, False}}
        yield _needs(_int("group", num_bits=between(2, 4)), inputs, **sizes)


def _w8a8(bits: Any, **fields: Any) -> tuple[Needs, ...]:
    return tuple(
        _needs(_int(ROW, num_bits=bits), inputs, dtype=FLOATS, outputs=outputs, **fields)
        for inputs in INT_INPUTS
        for outputs in (Absent, _INT_OUTPUTS)
    )


def _exact_u8s8() -> Iterator[Needs]:
    """Where the u8 x s8 product sums in 32 bits; elsewhere x86 saturates in 16 (see u8s8.py). The probe has the last
    word, this lets a plan say so without one."""
    for instructions in ("isa.avx512_vnni", "isa.avx_vnni", "isa.amx_int8"):
        yield from _w8a8(between(2, 8), **{instructions: True})
    yield from _w8a8(between(2, 8), arch={"aarch64", "arm64"})


def _dequant() -> Iterator[Needs]:
    for inputs in (Absent, *INT_INPUTS, _INT_GROUP, *FP8_INPUTS, _FP8_GROUP):
        for outputs in (Absent, _INT_OUTPUTS):
            yield _needs(_int(ROW | {"block"}, num_bits=between(1, 8)), inputs, dtype=FLOATS, outputs=outputs)
            grouped = _int("group", num_bits=between(1, 8))
            ordered: dict[str, Any] = {"g_idx": {True, False}, "k%group": 0}
            yield _needs(grouped, inputs, dtype=FLOATS, outputs=outputs, **ordered)
    for inputs in (Absent, *FP8_INPUTS, _FP8_GROUP):
        yield _needs(_fp8(ROW | {"block"}, False), inputs, dtype=FLOATS)
        more: dict[str, Any] = {"k%group": 0}
        yield _needs(_fp8("group", False, scale_dtype=FLOATS), inputs, dtype=FLOATS, **more)
        yield _needs(_fp8("group", False, scale_dtype=None, group_size=not_in({32})), inputs, dtype=FLOATS, **more)
        # groups of 32 that do not say what their scales are: the scheme does
        told = {"w8a8_fp8", "w8a16_fp8"}
        alone = _fp8("group", False, scale_dtype=None, group_size=32)
        yield _needs(alone, inputs, dtype=FLOATS, scheme=told, **more)


def _mx(bits: Any, dynamic: bool, scale_dtype: Any) -> Args:
    fields = {"strategy": "group", "group_size": 32, "symmetric": True, "scale_dtype": scale_dtype}
    return Args(type="float", num_bits=bits, dynamic=dynamic, **fields)


def _microfloats() -> Iterator[Needs]:
    either = {None, "uint8"}
    whole: dict[str, Any] = {"dtype": FLOATS, "k%32": 0}
    for inputs in (Absent, _mx({4, 8}, True, either)):
        yield _needs(_mx(6, False, either), inputs, **whole)
        yield _needs(_mx(8, False, "uint8"), inputs, **whole)
        yield _needs(_mx(8, False, None), inputs, scheme={"w8a8_mxfp8", "w8a16_mxfp8"}, **whole)
    for inputs in (Absent, _mx(4, True, either), _mx(8, True, "uint8"), _fp8("token", True), _FP8_GROUP):
        yield _needs(_mx(4, False, either), inputs, **whole)
    nv: dict[str, Any] = {"strategy": "tensor_group", "group_size": 16, "symmetric": True}
    nv |= {"type": "float", "num_bits": 4, "scale_dtype": {None, "float8_e4m3fn"}}
    for inputs in (Absent, Args(dynamic="local", **nv)):
        yield _needs(Args(dynamic=False, **nv), inputs, dtype=FLOATS, **{"k%16": 0})


def kernels() -> Iterator[Kernel]:
    """The records, best first."""
    yield from native_int8()
    yield from native_linear((*_dequant(), *_microfloats()))
    yield from native_dense()
    yield from _torch()


def _torch() -> Iterator[Kernel]:
    """On torch's own ops."""
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
    yield Kernel(
        name="cpu/microfloat",
        op="linear",
        rank=10,
        requires=_microfloats(),
        target=f"{here}.microfloat:MicrofloatLinear",
    )
