"""Every float8 code widens to what torch's own conversion gives."""

from __future__ import annotations

import torch

from quantdispatch.numerics.widening import float8_to_float32


def test_every_code_in_any_layout() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).reshape(2, 4, 32)
    for seen in (codes, codes.transpose(0, 2), codes[:, ::2, 1:], codes[:0]):
        wide, expected = float8_to_float32(seen), seen.to(torch.float32)
        assert wide.dtype == torch.float32 and wide.shape == seen.shape
        # NaN equals NaN here, and zeros of different signs differ
        assert torch.equal(wide.nan_to_num(nan=1e9), expected.nan_to_num(nan=1e9))
        assert torch.equal(wide.signbit()[~wide.isnan()], expected.signbit()[~wide.isnan()])
    assert codes.view(torch.uint8).flatten().tolist() == list(range(256)), "the codes are as they were"
