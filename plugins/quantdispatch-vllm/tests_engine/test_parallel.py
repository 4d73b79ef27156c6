"""Tensor parallel 2 on the CPU answers what one rank does: columns, rows, fused members, groups, column order."""

from __future__ import annotations

import pytest
import torch

DENSE = ("w4a16-asym", "w4a16-asym-g_idx", "w8a8-int8", "fp8-dynamic", "w4a16-lm_head")


@pytest.mark.parametrize("folder, names", [("tiny", DENSE), ("experts", ("w4a16-sym",))])
def test_two_ranks_as_one(ask, folder: str, names: tuple[str, ...]) -> None:
    one = ask(folder, list(names), dtype="float32")
    two = ask(folder, list(names), dtype="float32", tensor_parallel=2)
    for name in names:
        assert "error" not in two[name], two[name]
        difference = torch.tensor(one[name]["logprobs"]) - torch.tensor(two[name]["logprobs"])
        # quantized inputs are scaled by a rank's own columns, as everywhere
        assert difference.abs().mean() < (0.05 if "a8" in name or "fp8" in name else 2e-3), name
