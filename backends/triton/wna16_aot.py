"""The weight-only kernels as defaults launch them, for :mod:`.aot`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import triton.language as tl

from .aot import Case
from .compat import TARGETS
from .config import Config, default
from .wna16_kernel import product, sum_splits, weight
from .wna16_product import per_scale

_INTS = ("m", "n", "k", "stride_x", "row_words", "tiles", "groups", "inner")
_DIVISIBLE = frozenset({"x", "packed", "scale", "zero", "columns", "addend", "divisor", "y", "n", "k", "inner",
                        "stride_x", "row_words"})  # fmt: skip
_HALF = {"bf16": tl.bfloat16, "fp16": tl.float16}
Form = tuple[str, int, int, int, int, int, bool, bool]
#: forms: name, FORM, BITS, RUN, GROUP_RUNS, SCALE, ZERO, columns through an index
FORMS: tuple[Form, ...] = (
    ("int4 g128", 0, 4, 64, 2, 0, False, False),
    ("int4 g32 asymmetric", 0, 4, 32, 1, 0, True, False),
    ("int4 g128 asymmetric, g_idx", 0, 4, 64, 2, 0, True, True),
    ("int4 channel", 0, 4, 64, 0, 0, False, False),
    ("int2 g64", 0, 2, 32, 2, 0, False, False),
    ("int8 channel", 0, 8, 64, 0, 0, False, False),
    ("int8 g128 asymmetric", 0, 8, 64, 2, 0, True, False),
    ("nvfp4", 1, 4, 16, 1, 2, False, False),
    ("mxfp4", 1, 4, 32, 1, 1, False, False),
    ("mxfp8", 2, 8, 32, 1, 1, False, False),
    ("fp8 channel", 2, 8, 64, 0, 0, False, False),
)
#: tokens, and the class of instruction by family, other families having mma
_SIZES: tuple[tuple[int, dict[str, str]], ...] = ((1, {}), (16, {}), (256, {"sm90": "wgmma", "sm100": "tcgen05"}))
#: what every run of CI compiles, and what the other families than sm90 are compiled for beside it
_COMMON = {("int4 g128", 1), ("int4 g128", 256)}
_FEW = _COMMON | {("int4 g128", 16), ("int4 g32 asymmetric", 1), ("int8 g128 asymmetric", 256), ("nvfp4", 1),
                  ("fp8 channel", 256)}  # fmt: skip


def _signature(half: str, scale: int, wide: bool) -> dict[str, str]:
    pointers = {
        "x": f"*{half}", "packed": "*i32", "scale": "*u8" if scale else f"*{half}", "zero": "*u8", "columns": "*i32",
        "bias": "*fp32", "divisor": "*fp32", "y": "*fp32" if wide else f"*{half}", "parts": "*fp32",
        "count": "i64", "splits": "i32",
    }  # fmt: skip
    return pointers | dict.fromkeys(_INTS, "i32")


def product_case(family: str, half: str, m: int, form: Form, config: Config | None = None) -> Case:
    """``config``: in place of the default."""
    name, code, bits, run, group_runs, scale, zero, columns = form
    config = config or default(m, 8192, 28672 // (run * 32 // bits), family, 132)
    constants: dict[str, Any] = dict(
        FORM=code, BITS=bits, RUN=run, GROUP_RUNS=group_runs, SCALE=scale, ZERO=zero, COLUMNS=columns, WHOLE=True,
        BIAS=True, DIVISOR=scale == 2, DTYPE=_HALF[half], FAST=family.startswith("sm"), EXACT=False,
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, PARTS=config.splits > 1,
        PER_SCALE=per_scale(group_runs, 32 // bits), STAGES=config.stages, WIDE=False,
    )  # fmt: skip
    absent = ([] if zero else ["zero"]) + ([] if columns else ["columns"]) + ([] if scale == 2 else ["divisor"])
    constants |= dict.fromkeys(absent)
    instruction = "mfma" if family == "gfx942" else dict(_SIZES).get(m, {}).get(family, "mma")
    return Case(
        f"wna16 {name}, {half}, M={m}: {config.block_m} x {config.block_n}, {config.warps} warps",
        family, product, _signature(half, scale, config.splits > 1), constants, _DIVISIBLE, config.warps,
        config.stages, instruction, common=(name, m) in _COMMON and half == "bf16",
    )  # fmt: skip


def aot_cases() -> Iterator[Case]:
    """For sm90 every form in three sizes, for the others the most different ones; the sum, and the weight alone."""
    for family in TARGETS:
        for m, _ in _SIZES:
            for form in FORMS:
                if family == "sm90" or (form[0], m) in _FEW:
                    yield product_case(family, "bf16", m, form)
            if family == "sm90":
                yield product_case(family, "fp16", m, FORMS[0])
        common = family in ("sm80", "gfx942")
        signature = _signature("bf16", 0, False)
        constants: dict[str, Any] = dict(BIAS=True, DIVISOR=False, DTYPE=tl.bfloat16, BLOCK=1024)
        yield Case("wna16 sum of splits", family, sum_splits, signature, constants | {"divisor": None},
                   _DIVISIBLE | {"parts"}, 4, 3, None, common)  # fmt: skip
        constants = dict(FORM=0, BITS=4, RUN=64, GROUP_RUNS=2, SCALE=0, ZERO=False, COLUMNS=False, DIVISOR=False,
                         DTYPE=tl.bfloat16, BLOCK_N=16, zero=None, columns=None, divisor=None)  # fmt: skip
        yield Case("wna16 weight alone, int4 g128", family, weight, signature, constants, _DIVISIBLE, 4, 3, None,
                   common)  # fmt: skip
