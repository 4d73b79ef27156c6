"""Everything that tuning may measure, for :mod:`.aot`: each candidate of each family as a launch would compile it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from . import experts_tiles, quantized_aot, scaled_aot, scaled_blocks, tiles, wna16_aot, wna16_product
from .aot import Case
from .launch import Device
from .wna16_layout import Layout

#: of the families that it is asked for; the last has the instructions that take scales too
FAMILIES = ("sm80", "sm90", "sm100", "gfx942")
#: rows whose candidates differ
_ROWS = (16, 64, 1024)
#: an H200's processors; how many there are changes splits only
_PROCESSORS = 132
_N, _K = 8192, 4096


def cases(family: str) -> Iterator[Case]:
    """Without those that differ in splits of K only, of which one is compiled for each."""
    device = Device(family, _PROCESSORS, family)
    yield from _distinct(_quantized(device))
    yield from _distinct(_experts(device))
    yield from _distinct(_weight_only(device))
    yield from _distinct(_scaled(device))


def _distinct(found: Iterator[Case]) -> Iterator[Case]:
    seen = set()
    for case in found:
        if case.name not in seen:
            seen.add(case.name)
            yield case


def _quantized(device: Device) -> Iterator[Case]:
    for name, of, asymmetric in quantized_aot.FORMS:
        for m in _ROWS:
            for tile in tiles.TILES.candidates(device, of, m, _N, _K, "bf16"):
                one = replace(tile, split=min(tile.split, 2))
                case = quantized_aot.product_case(name, of, asymmetric, device.family, m, one)
                yield replace(case, name=f"quantized {name}: {_text(one)}")


def _experts(device: Device) -> Iterator[Case]:
    for name, of in quantized_aot.EXPERTS:
        for rows in (16, 32) if of.weight != "fp4" else (16,):
            for tile in experts_tiles.EXPERT_TILES.candidates(device, of, rows, _N, _K, 8, 256, "bf16"):
                yield replace(quantized_aot.experts_case(name, of, device.family, tile),
                              name=f"experts {name}: {_text(tile)}")  # fmt: skip


def _weight_only(device: Device) -> Iterator[Case]:
    for form in wna16_aot.FORMS:
        name, code, bits, run, group_runs, _, zero, _ = form
        group = group_runs * run
        layout = Layout(_N, _K, code, bits, _K // group if group else 1, _K, group, run)
        for m in (1, 16, 64, 1024):
            for one in wna16_product.CONFIGS.candidates(device, m, layout, "bf16", zero):
                if not one.dense:
                    made = replace(one, splits=min(one.splits, 2))
                    yield replace(wna16_aot.product_case(device.family, "bf16", m, form, made),
                                  name=f"wna16 {name}: {_text(made)}")  # fmt: skip


def _scaled(device: Device) -> Iterator[Case]:
    if device.family not in ("sm100", "sm120"):
        return
    for form in scaled_aot.FORMS:
        name, x_fp4, w_fp4, group, _ = form
        if device.family == "sm120" and x_fp4 != w_fp4:
            continue
        bits = (4 if x_fp4 else 8, 4 if w_fp4 else 8)
        for m in (16, 256):
            for one in scaled_blocks.BLOCKS.candidates(device, m, _N, _K, *bits, group, "bf16"):
                yield replace(scaled_aot.scaled_case(form, device.family, m, one),
                              name=f"block_scaled {name}: {_text(one)}")  # fmt: skip


def _text(config: object) -> str:
    """As its ``repr`` without the class, which the case's name says."""
    return repr(config).partition("(")[2].rstrip(")")
