"""Do torch's ops work on the device that is here? Tried once with a small product, when a layer is bound."""

from __future__ import annotations

import torch
from torch import Tensor

from .linear import _scaled_mm

_SIZE = 64


def scaled_mm() -> str | None:
    """``None`` where the op gives the product, else what is wrong. What it raises is the caller's to report."""
    one = torch.ones((), device=_device())
    return _wrong(_scaled_mm(_ones(), _ones(), one, one, torch.bfloat16))


def scaled_mm_rows() -> str | None:
    rows = torch.ones(_SIZE, 1, device=_device())
    return _wrong(_scaled_mm(_ones(), _ones(), rows, rows.t().contiguous(), torch.bfloat16))


def scaled_mm_after() -> str | None:
    one = torch.ones((), device=_device())
    return _wrong(_scaled_mm(_ones(), _ones(), one, one, torch.float32))


def int_mm() -> str | None:
    ones = torch.ones(_SIZE, _SIZE, dtype=torch.int8, device=_device())
    return _wrong(torch._int_mm(ones, ones.t()))


def grouped_mm() -> bool:
    """Is there a grouped fp8 product on this device? Its own error says no."""
    if not hasattr(torch, "_scaled_grouped_mm"):
        return False
    try:
        scale = torch.ones(_SIZE, device=_device())
        ends = torch.tensor([_SIZE], dtype=torch.int32, device=_device())
        weights, by_row = _ones().unsqueeze(0), torch.ones(1, _SIZE, device=_device())
        y = torch._scaled_grouped_mm(
            _ones(), weights.transpose(1, 2), scale, by_row, offs=ends, out_dtype=torch.bfloat16
        )
    except (RuntimeError, NotImplementedError, TypeError):
        return False
    return _wrong(y) is None


def _device() -> torch.device:
    return torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")


def _ones() -> Tensor:
    return torch.ones(_SIZE, _SIZE, device=_device()).to(torch.float8_e4m3fn)


def _wrong(y: Tensor) -> str | None:
    right = bool((y.float() == _SIZE).all())
    return None if right else f"the product of ones is {y.float().mean().item():g} instead of {_SIZE}"
