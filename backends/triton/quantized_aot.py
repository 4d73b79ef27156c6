"""The kernels for quantized inputs as defaults launch them, for :mod:`.aot`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton.language as tl

from .activations_codes import E4M3, E8M0
from .activations_kernels import quantize_groups, quantize_tensor, quantize_tokens
from .activations_linear import Product, add_parts, linear
from .activations_small import fake_quantize, quantize_small
from .aot import Case
from .compat import TARGETS
from .experts_kernel import grouped
from .experts_tiles import MOST_TOKENS, expert_tile
from .tiles import Tile, tile_for

_N, _K = 8192, 4096
_SIZES = (16, 256)
_DIVISIBLE = frozenset({"x_ptr", "w_ptr", "s_ptr", "z_ptr", "sums_ptr", "bias_ptr", "y_ptr", "codes_ptr", "parts_ptr",
                        "n", "k", "x_stride", "w_stride", "s_rows", "columns"})  # fmt: skip
#: name, what is multiplied, are the inputs asymmetric; w8a8 is what every run of CI compiles
FORMS: tuple[tuple[str, Product, bool], ...] = (
    ("int8 x int8", Product("int8", "int8"), False),
    ("int8 x int8 asymmetric, both", Product("int8", "int8", zero=True, wide=True), True),
    ("int4 g128 x int8", Product("int4", "int8", group=128), False),
    ("fp8 x fp8", Product("fp8", "fp8"), False),
    ("fp8 x fp8, blocks of 128", Product("fp8", "fp8", group=128, rows=128, x_group=128), False),
    ("int4 g128 x fp8", Product("int4", "fp8", group=128), False),
    ("nvfp4 x nvfp4", Product("fp4", "half", group=16, scale=E4M3.value), False),
    ("mxfp4 x mxfp8", Product("fp4", "half", group=32, scale=E8M0.value, run=32), False),
)
_COMMON = {"int8 x int8", "fp8 x fp8"}
#: outputs are the rows of a tile (see :mod:`.activations_product`), 64 of them and more even for one token
_WIDE = {"sm90": "wgmma", "sm100": "tcgen05"}


def _signature(of: Product) -> dict[str, str]:
    bytes_ = "*u8" if of.weight in ("fp8", "int4", "fp4") else "*i8"
    inputs = {"int8": "*i8", "fp8": "*u8", "half": "*bf16"}[of.inputs]
    scale = "*u8" if of.scale else "*bf16"
    pointers = {
        "x_ptr": inputs, "w_ptr": bytes_, "s_ptr": scale, "z_ptr": "*i8", "xs_ptr": "*fp32", "xz_ptr": "*i32",
        "sums_ptr": "*i32" if of.integer else "*fp32", "global_ptr": "*fp32", "bias_ptr": "*bf16", "y_ptr": "*bf16",
        "parts_ptr": "*i32" if of.integer else "*fp32",
    }  # fmt: skip
    integers = ("m", "n", "k", "x_stride", "w_stride", "s_rows", "x_groups", "xs_stride", "columns")
    return pointers | dict.fromkeys(integers, "i32")


def _absent(of: Product, asymmetric: bool) -> dict[str, Any]:
    gone = [] if of.zero else ["z_ptr"]
    gone += [] if asymmetric else ["sums_ptr", "xz_ptr"]
    gone += ["xs_ptr"] if of.inputs == "half" else []
    gone += [] if of.scale == E4M3.value else ["global_ptr"]
    return dict.fromkeys(gone)


def _expected(family: str) -> str:
    return "mfma" if family == "gfx942" else _WIDE.get(family, "mma")


def product_case(name: str, of: Product, asymmetric: bool, family: str, m: int, tile: Tile | None = None) -> Case:
    """``tile``: in place of the default."""
    tile = tile or tile_for(of, m, _N, _K, family, 132)
    step = 2 * tile.bk if of.packed else tile.bk
    signature = _signature(of) | ({"y_ptr": "*i32" if of.integer else "*fp32"} if tile.split > 1 else {})
    constants: dict[str, Any] = {
        **of.constants(family, torch.bfloat16), **_absent(of, asymmetric), "EVEN": step <= _K, "SPLIT": tile.split,
        "BM": tile.bm, "BN": tile.bn, "BK": tile.bk,
    }  # fmt: skip
    return Case(
        f"quantized {name}, M={m}: {tile.bm} x {tile.bn}, {tile.warps} warps", family, linear, signature, constants,
        _DIVISIBLE, tile.warps, tile.stages, _expected(family),
        common=name in _COMMON and family in ("sm80", "sm90", "gfx942"),
    )  # fmt: skip


def aot_cases() -> Iterator[Case]:
    for family in TARGETS:
        for name, of, asymmetric in FORMS:
            for m in _SIZES:
                yield product_case(name, of, asymmetric, family, m)
        of = FORMS[0][1]
        constants = {key: value for key, value in of.constants(family, torch.bfloat16).items()
                     if key in ("GROUP", "ROWS", "XGROUP", "SCALE", "FACTOR")}  # fmt: skip
        constants |= {"SPLIT": 4, "BM": 8, "BN": 128, **_absent(of, False)}
        constants = {key: value for key, value in constants.items() if key in add_parts.arg_names}
        yield Case("quantized sum of parts", family, add_parts, _signature(of), constants, _DIVISIBLE, 4, 3, None)
        yield from _quantizations(family)
        yield from _experts(family)


#: as experts: name, what is multiplied, the weight's bytes and the scales
EXPERTS: tuple[tuple[str, Product], ...] = (
    ("int4 g128", Product("int4", "half", group=128)),
    ("int4 g32 asymmetric", Product("int4", "half", group=32, zero=True, run=32)),
    ("int8 x int8", Product("int8", "int8")),
    ("fp8 x fp8", Product("fp8", "fp8")),
    ("nvfp4", Product("fp4", "half", group=16, scale=E4M3.value)),
)


def _experts(family: str) -> Iterator[Case]:
    for name, of in EXPERTS:
        for m in (16, MOST_TOKENS) if of.weight != "fp4" else (16,):
            yield experts_case(name, of, family, expert_tile(of, m, _N, _K, family))


def experts_case(name: str, of: Product, family: str, tile: Tile) -> Case:
    plain = _signature(of)
    signature = {**plain, "table_ptr": "*i64", "blocks_ptr": "*i32", "pairs_ptr": "*i32", "y_ptr": "*fp32",
                 "repeat": "i32"}  # fmt: skip
    types = {"*u8": tl.uint8, "*i8": tl.int8, "*bf16": tl.bfloat16}
    constants: dict[str, Any] = {
        **of.constants(family, torch.bfloat16), **({"xs_ptr": None} if of.inputs == "half" else {}),
        "FIELDS": 5, "WEIGHTS": types[plain["w_ptr"]], "SCALES": types[plain["s_ptr"]], "BIASES": tl.bfloat16,
        "BIAS": False, "GLOBAL": of.scale == E4M3.value, "EVEN": True, "BM": tile.bm, "BN": tile.bn,
        "BK": tile.bk,
    }  # fmt: skip
    return Case(
        f"experts {name}, {tile.bm} tokens a block: {tile.bm} x {tile.bn}, {tile.warps} warps", family, grouped,
        signature, constants, _DIVISIBLE, tile.warps, tile.stages, _expected(family),
        common=name == "int4 g32 asymmetric" and tile.bm == 16 and family in ("sm80", "sm90", "gfx942"),
    )  # fmt: skip


def _quantizations(family: str) -> Iterator[Case]:
    types = {"x_ptr": "*bf16", "scale_ptr": "*fp32", "zero_ptr": "*i32", "extent_ptr": "*i32", "stored_ptr": "*bf16",
             "stored_zero_ptr": "*i8"}  # fmt: skip
    integers = dict.fromkeys(("x_stride", "k", "groups", "repeat"), "i32")
    for kind, nv, bits, size in (("mxfp8", False, 8, 32), ("mxfp4", False, 4, 32), ("nvfp4", True, 4, 16)):
        small = {"NV": nv, "BITS": bits, "SIZE": size, "GROUPS": 2048 // size}
        signature = (
            types | integers | {"out_ptr": "*bf16", "codes_ptr": "*u8", "scale_ptr": "*u8", "global_ptr": "*fp32"}
        )
        for verb, kernel in (("fake-quantized", fake_quantize), ("quantized", quantize_small)):
            constants = small if nv else small | {"global_ptr": None}
            yield Case(f"{kind} {verb}", family, kernel, signature, constants, _DIVISIBLE, 4, 3, None)
    for kind in ("int8", "fp8"):
        how = {"FP8": kind == "fp8", "BITS": 8, "SYMMETRIC": True, "zero_ptr": None}
        signature = types | integers | {"codes_ptr": "*i8" if kind == "int8" else "*u8"}
        common = family == "sm80"
        yield Case(f"{kind} a token", family, quantize_tokens, signature, how | {"BLOCK": 4096}, _DIVISIBLE, 8, 3, None,
                   common)  # fmt: skip
        yield Case(f"{kind} in groups of 128", family, quantize_groups, signature,
                   how | {"SIZE": 128, "WIDTH": 128, "GROUPS": 16}, _DIVISIBLE, 4, 3, None)  # fmt: skip
        dynamic = {"DYNAMIC": True, "BLOCK": 4096, "stored_ptr": None, "stored_zero_ptr": None}
        yield Case(f"{kind} a tensor", family, quantize_tensor, signature, how | dynamic, _DIVISIBLE, 8, 3, None)
