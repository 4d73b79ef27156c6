"""Products with scales on both sides, for :mod:`.aot`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import triton.language as tl

from .aot import Case
from .scaled_blocks import Blocks, blocks
from .scaled_kernel import scaled_product

_SIGNATURE = {
    "x": "*u8", "x_scale": "*u8", "weight": "*u8", "scale": "*u8", "bias": "*bf16", "x_divisor": "*fp32",
    "divisor": "*fp32", "y": "*bf16", "m": "i32", "n": "i32", "k": "i32",
}  # fmt: skip
_DIVISIBLE = frozenset({"x", "x_scale", "weight", "scale", "bias", "y", "n", "k"})
#: name, fp4 inputs, fp4 weights, group, kind of scales
FORMS = (
    ("nvfp4 x nvfp4", True, True, 16, 2),
    ("mxfp4 x mxfp4", True, True, 32, 1),
    ("mxfp8 x mxfp8", False, False, 32, 1),
    ("mxfp8 x mxfp4", False, True, 32, 1),
)


Form = tuple[str, bool, bool, int, int]


def aot_cases() -> Iterator[Case]:
    for family in ("sm100", "sm120"):
        for form in FORMS:
            # sm120 has both sides of one width
            if family == "sm120" and form[1] != form[2]:
                continue
            for m in (16, 256) if family == "sm120" else (256,):
                yield scaled_case(form, family, m, blocks(m, family))


def scaled_case(form: Form, family: str, m: int, one: Blocks) -> Case:
    name, x_fp4, w_fp4, group, kind = form
    constants: dict[str, Any] = dict(
        X_FP4=x_fp4, W_FP4=w_fp4, GROUP=group, KIND=kind, BIAS=True, DIVISOR=kind == 2, NATIVE=True,
        OUT=tl.bfloat16, BLOCK_M=one.m, BLOCK_N=one.n, BLOCK_K=one.k,
    )  # fmt: skip
    return Case(
        f"block_scaled {name}, M={m}: {one.m} x {one.n}, {one.warps} warps", family, scaled_product, _SIGNATURE,
        constants, _DIVISIBLE, one.warps, one.stages, "tcgen05 scaled" if family == "sm100" else "mma scaled",
        common=name == "nvfp4 x nvfp4",
    )  # fmt: skip
