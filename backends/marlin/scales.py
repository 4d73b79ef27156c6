"""A layer's scales to what Marlin reads and back: spread over N, in the kernels' number format, permuted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ...registry.args import QuantArgs
from . import forms, layout


class Held(NamedTuple):
    """``more``: further entries of a kernel's state that belong to the scales: ``whole``, ``rest``, ``shift``."""

    scales: Tensor
    more: dict[str, Tensor]


def spread(values: Tensor, args: QuantArgs, n: int) -> Tensor:
    """Scales or zero points as operands have them, to [G, N]: one row where there is one scale for all of K."""
    if args.strategy == "block" and args.block_structure:
        values = values.repeat_interleave(args.block_structure[0], dim=0)[:n]
    return values.expand(n, -1).t().contiguous()


def hold_scales(scales: Tensor, form: forms.Form, dtype: torch.dtype, divisor: Tensor | None, wide: bool) -> Held:
    """Scales [G, N] as the kernels read them. ``divisor``: nvfp4's global scale. ``wide``: the op reads its factor of
    all as fp32; else it is rounded to ``dtype``, and what that loses is ``rest``."""
    grouped = scales.shape[0] > 1
    if form.scale == "mx":
        return Held(forms.quads(layout.permute_scales(scales, grouped)).view(torch.float8_e8m0fnu), {})
    if form.scale == "nv":
        assert divisor is not None
        held, shift = forms.nv_scales(scales, dtype)
        exact = forms.nv_whole(divisor, shift, dtype)
        whole = exact.to(torch.float32 if wide else dtype)
        more = {"whole": whole, "shift": torch.tensor([shift], device=scales.device)}
        rest = (exact / whole.double()).float()
        if not wide and bool(((rest - 1).abs() > 2.0**-12).any()):
            more["rest"] = rest
        return Held(forms.quads(layout.permute_scales(held, grouped)).view(torch.float8_e4m3fn), more)
    narrow = scales.to(dtype)
    return Held(layout.permute_scales(forms.fp8_scales(narrow) if form.scale == "fp8" else narrow, grouped), {})


def unheld_scales(state: Mapping[str, Tensor], form: forms.Form) -> Tensor:
    """The inverse: [G, N] in the dtype they had, as far as that is the dtype of x or a byte."""
    scales = state["scales"]
    grouped = scales.shape[0] > 1
    if form.scale in ("mx", "nv"):
        octets = layout.restore_scales(forms.quads(scales.view(torch.uint8)), grouped)
        return octets if form.scale == "mx" else forms.plain_nv_scales(octets, float(state["shift"]))
    plain = layout.restore_scales(scales, grouped)
    return forms.plain_fp8_scales(plain) if form.scale == "fp8" else plain
