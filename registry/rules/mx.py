"""Microscaling floats: fp4 (e2m1), fp6 (e2m3) or fp8 (e4m3) in groups of 32 with a power of two as scale.

Format: compressed-tensors ``mxfp4-pack-quantized`` (two codes a byte), ``mxfp6-pack-quantized`` (four codes in three
bytes), ``mxfp8-quantized`` (``compressors/mx*``); the scale is stored as its exponent, uint8 with bias 127 (OCP MX
v1.0). A ``scale_dtype`` of uint8 says so, and so does the mx format where the args leave it out: fp8 in groups of 32
under another format without it has plain float scales, and is a rule of :mod:`.float8`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..predicates import Args, When
from ..values import ABSENT as Absent
from .parts import GROUPS, MATRICES, TOKEN, UNORDERED, WEIGHT_ONLY, fp8_args
from .rule import Rule

#: formats that store fp8 codes one a byte and keep an exponent as it is
_ONE_A_BYTE = {"float-quantized", "naive-quantized"}


def _mx(bits: int, scale_dtype: Any) -> dict[str, Any]:
    return {
        "type": "float",
        "num_bits": bits,
        "strategy": "group",
        "group_size": 32,
        "symmetric": True,
        "scale_dtype": scale_dtype,
    }


def _stored(bits: int) -> Iterator[tuple[Any, Any]]:
    """(formats, scale dtypes) under which weights of ``bits`` have exponents for scales."""
    yield {4: "mxfp4-pack-quantized", 6: "mxfp6-pack-quantized", 8: "mxfp8-quantized"}[bits], {None, "uint8"}
    if bits == 8:
        yield _ONE_A_BYTE, "uint8"


def _when(bits: int, inputs: Iterable[Any]) -> tuple[When, ...]:
    return tuple(
        When(
            kind=WEIGHT_ONLY if given is Absent else MATRICES,
            format=formats,
            weights=Args(**_mx(bits, scales), dynamic=False, actorder=UNORDERED),
            inputs=given,
            outputs=Absent,
        )
        for formats, scales in _stored(bits)
        for given in inputs
    )


def _inputs(bits: int, scale_dtype: Any) -> Args:
    return Args(**_mx(bits, scale_dtype), dynamic=True, actorder=None)


#: groups of 32 without a scale dtype are mx inputs too: these formats have no other scales
MXFP4, MXFP8 = _inputs(4, {None, "uint8"}), _inputs(8, {None, "uint8"})
#: beside mxfp4 weights they are mx only where they say so, for fp8 inputs come with float scales as well
MARKED_MXFP8 = _inputs(8, "uint8")

RULES = (
    Rule(
        name="w4a4_mxfp4",
        summary="mxfp4 weights; mxfp4 inputs, scaled at run time",
        when=_when(4, [MXFP4]),
        scheme="quantdispatch.schemes.mx:W4A4MxFp4",
    ),
    Rule(
        name="w4a8_mxfp4",
        summary="mxfp4 weights; fp8 inputs scaled at run time: per token, per group, or mxfp8",
        when=_when(4, [*fp8_args((TOKEN, GROUPS)), MARKED_MXFP8]),
        scheme="quantdispatch.schemes.mx:W4A8MxFp4",
    ),
    Rule(
        name="w4a16_mxfp4",
        summary="mxfp4 weights; inputs unquantized",
        when=_when(4, [Absent]),
        scheme="quantdispatch.schemes.mx:W4A16MxFp4",
    ),
    Rule(
        name="w6a8_mxfp6",
        summary="mxfp6 weights (e2m3); mxfp8 inputs, scaled at run time",
        when=_when(6, [MXFP8]),
        scheme="quantdispatch.schemes.mx:W6A8MxFp6",
    ),
    Rule(
        name="w6a16_mxfp6",
        summary="mxfp6 weights (e2m3); inputs unquantized",
        when=_when(6, [Absent]),
        scheme="quantdispatch.schemes.mx:W6A16MxFp6",
    ),
    Rule(
        name="w8a8_mxfp8",
        summary="mxfp8 weights; mxfp8 inputs, scaled at run time",
        when=_when(8, [MXFP8]),
        scheme="quantdispatch.schemes.mx:W8A8MxFp8",
    ),
    Rule(
        name="w8a16_mxfp8",
        summary="mxfp8 weights; inputs unquantized",
        when=_when(8, [Absent]),
        scheme="quantdispatch.schemes.mx:W8A16MxFp8",
    ),
)
