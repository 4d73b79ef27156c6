"""Records: weight-only kernels, and products with scales on both sides. Importing this imports no torch, no triton."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...registry.domains import between, not_in
from ...registry.gpus import BLOCK_SCALED
from ...registry.kernels import Args, Kernel, Needs
from .requirements import SCALES, devices, needs

_HERE = "quantdispatch.backends.triton"
_ROW = {"tensor", "channel"}
#: the ways in which a scale can be a power of two
_EXPONENT = {None, "uint8"}


def _int(strategy: Any) -> Args:
    return Args(type="int", num_bits=between(1, 8), dynamic=False, strategy=strategy, scale_dtype=SCALES)


def _float(bits: Any, strategy: Any, **fields: Any) -> Args:
    fields = {"scale_dtype": SCALES, **fields}
    return Args(type="float", num_bits=bits, symmetric=True, dynamic=False, strategy=strategy, **fields)


def _boxes() -> Iterator[Needs]:
    whole: dict[str, Any] = {"k%group": 0}
    for where in devices():
        yield needs(where, _int(_ROW | {"block"}))
        yield needs(where, _int("group"), g_idx={True, False}, **whole)
        yield needs(where, _float(8, _ROW | {"block"}))
        yield needs(where, _float(8, "group", scale_dtype=set(SCALES) - {None}), **whole)
        yield needs(where, _float(8, "group", scale_dtype=None, group_size=not_in({32})), **whole)
        # groups of 32 that do not say what their scales are: the scheme does
        yield needs(where, _float(8, "group", scale_dtype=None, group_size=32), scheme="w8a16_fp8", **whole)
        mx: dict[str, Any] = {"group_size": 32}
        yield needs(where, _float({4, 6}, "group", scale_dtype=_EXPONENT, **mx), **whole)
        yield needs(where, _float(8, "group", scale_dtype="uint8", **mx), **whole)
        yield needs(where, _float(8, "group", scale_dtype=None, **mx), scheme="w8a16_mxfp8", **whole)
        nv: dict[str, Any] = {"group_size": 16, "scale_dtype": {None, "float8_e4m3fn"}}
        yield needs(where, _float(4, "tensor_group", **nv), **{"k%16": 0})


def _scaled() -> Iterator[Needs]:
    """Both sides with scales a group. e4m3 beside e2m1: sm120 has no instruction that Triton finds for it."""
    nv = {"type": "float", "num_bits": 4, "strategy": "tensor_group", "group_size": 16, "symmetric": True}
    nv |= {"scale_dtype": {None, "float8_e4m3fn"}}
    mx = {"type": "float", "strategy": "group", "group_size": 32, "symmetric": True}
    whole: dict[str, Any] = {"k%32": 0}
    four, eight = mx | {"num_bits": 4, "scale_dtype": _EXPONENT}, mx | {"num_bits": 8, "scale_dtype": "uint8"}
    for cuda, weights, inputs, dynamic in (
        (BLOCK_SCALED, nv, nv, "local"),
        (BLOCK_SCALED, four, four, True),
        (BLOCK_SCALED, eight, eight, True),
        ({"sm100"}, four, eight, True),
    ):
        for where in devices(cuda, ()):
            sides = Args(dynamic=False, **weights), Args(dynamic=dynamic, **inputs)
            yield needs(where, *sides, **whole)


def kernels() -> Iterator[Kernel]:
    yield Kernel(
        name="triton/wna16",
        op="linear",
        rank=50,
        requires=tuple(_boxes()),
        target=f"{_HERE}.wna16:WNA16Linear",
        probe=f"{_HERE}.probes:device",
    )
    yield Kernel(
        name="triton/block_scaled",
        op="linear",
        rank=60,
        requires=tuple(_scaled()),
        target=f"{_HERE}.scaled:BlockScaledLinear",
        probe=f"{_HERE}.probes:device",
    )
