"""torch's own products of quantized matrices on GPUs: ``_scaled_mm`` (fp8), ``_int_mm`` (int8) and
``_scaled_grouped_mm`` (fp8 experts). Importing this is cheap: records only. No GPU has run these from here yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...registry.domains import at_least, between
from ...registry.gpus import AMPERE_ON, FP8
from ...registry.kernels import Absent, Args, Kernel, Needs

_HERE = "quantdispatch.backends.torch_cuda"
_KINDS = {"linear", "lm_head", "moe"}
_FLOATS = {None, "bfloat16", "float16", "float32"}
_HALVES = {"bfloat16", "float16"}
#: of the device's part of torch
_TORCH = {"version.torch": at_least(210)}


def _fp8(strategy: Any, dynamic: Any) -> Args:
    return Args(type="float", num_bits=8, symmetric=True, strategy=strategy, dynamic=dynamic, scale_dtype=_FLOATS)


def _float8(weights: Any, inputs: Iterator[Args], **fields: Any) -> Iterator[Needs]:
    for args in inputs:
        more = {"g_idx": False, "n%16": 0, "k%16": 0, **_TORCH, **fields}
        yield Needs(more, device="cuda", kind=_KINDS, weights=_fp8(weights, False), inputs=args, outputs=Absent)


def _tensor() -> Iterator[Needs]:
    yield from _float8("tensor", iter([_fp8("tensor", {True, False})]), dtype=_HALVES, family=FP8)


def _rows() -> Iterator[Needs]:
    """One scale a row of x and of W inside the product, which has bf16 outputs only."""
    both = [_fp8("token", True), _fp8("tensor", {True, False})]
    yield from _float8({"tensor", "channel"}, iter(both), dtype="bfloat16", family=FP8)


def _scaled_after() -> Iterator[Needs]:
    both = [_fp8("token", True), _fp8("tensor", {True, False})]
    yield from _float8({"tensor", "channel"}, iter(both), dtype=_HALVES, family=FP8)


def _int8() -> Iterator[Needs]:
    """sm75 multiplies int8, and has no bf16. Codes of fewer bits than 8 are int8 too."""
    weights = Args(
        type="int", num_bits=between(2, 8), strategy={"tensor", "channel"}, dynamic=False, scale_dtype=_FLOATS
    )
    inputs: dict[str, Any] = {"type": "int", "num_bits": between(2, 8), "scale_dtype": _FLOATS}
    kinds = (Args(**inputs, strategy="token", dynamic=True), Args(**inputs, strategy="tensor", dynamic={True, False}))
    outputs = Args(type="int", num_bits=between(2, 8), strategy="tensor", dynamic=False, scale_dtype=_FLOATS)
    places = ((_HALVES, AMPERE_ON), ({"float16"}, {"sm75"}))
    for seen in kinds:
        for written in (Absent, outputs):
            for dtype, family in places:
                fields = {"g_idx": False, "n%8": 0, "k%8": 0, "dtype": dtype, "family": family, **_TORCH}
                yield Needs(fields, device="cuda", kind=_KINDS, weights=weights, inputs=seen, outputs=written)


def kernels() -> Iterator[Kernel]:
    """The records, best first."""
    for name, rank, requires in (
        ("scaled_mm", 30, _tensor()),
        ("scaled_mm_rows", 20, _rows()),
        ("scaled_mm_after", 10, _scaled_after()),
        ("int_mm", 10, _int8()),
    ):
        yield Kernel(
            name=f"torch/{name}",
            op="linear",
            rank=rank,
            requires=tuple(requires),
            target=f"{_HERE}.linear:{''.join(part.capitalize() for part in name.split('_'))}",
            probe=f"{_HERE}.probes:{name}",
        )
