"""Which shapes SGLang's Marlin kernels take: by the definition of their tiles, groups and words."""

from __future__ import annotations

from typing import Any

import pytest
from quantdispatch_sglang import limits

from quantdispatch.registry.args import QuantArgs

WNA16, FP8 = "CompressedTensorsWNA16", "CompressedTensorsW8A16Fp8"


def args(bits: int = 4, group: int | None = 64, symmetric: bool = True, kind: str = "int") -> QuantArgs:
    how: dict[str, Any] = {"strategy": "channel"} if group is None else {"strategy": "group", "group_size": group}
    return QuantArgs(num_bits=bits, type=kind, symmetric=symmetric, dynamic=False, **how)


@pytest.mark.parametrize(
    ("name", "weights", "sizes", "k", "says"),
    [
        (WNA16, args(), [128], 256, None),
        (WNA16, args(), [64], 128, None),
        (WNA16, args(), [128], 64, None),
        (WNA16, args(), [64, 64], 64, None),
        (WNA16, args(), [96, 32, 64], 256, None),
        (WNA16, args(), [64], 64, "N = 64 and K = 64"),
        (WNA16, args(), [96], 256, "N = 96 and K = 256"),
        (WNA16, args(), [128], 96, "no whole tiles of 64 x 128 or 128 x 64"),
        (WNA16, args(group=128), [128], 192, "no whole number of groups of 128"),
        (WNA16, args(group=None), [128], 192, None),
        (WNA16, args(symmetric=False), [124, 4], 256, "zero points of 124, 4 outputs end within a word of 8"),
        (WNA16, args(8, symmetric=False), [124, 4], 256, None),
        (WNA16, args(symmetric=True), [124, 4], 256, None),
        (FP8, args(8, None, kind="float"), [96], 256, "N = 96"),
        (FP8, args(8, None, kind="float"), [128], 256, None),
        ("CompressedTensorsW8A8Int8", args(8, None), [96], 40, None),
    ],
)
def test_linear(name: str, weights: QuantArgs, sizes: list[int], k: int, says: str | None) -> None:
    reason = limits.of_linear(name, weights, sizes, k)
    assert reason is None if says is None else says in str(reason)


@pytest.mark.parametrize(
    ("weights", "hidden", "inner", "activation", "says"),
    [
        (args(), 256, 128, "silu", None),
        (args(), 128, 64, "silu", None),
        (args(group=None), 128, 192, "silu", None),
        (args(group=32), 128, 64, "silu", None),
        (args(group=128), 128, 192, "silu", "an inner size of 192 is no multiple of 128"),
        (args(group=256), 256, 256, "silu", "no kernels for groups of 256"),
        (args(), 192, 128, "silu", "a hidden size of 192 is no multiple of 128"),
        (args(group=None), 256, 96, "silu", "an inner size of 96 is no multiple of 64"),
        (args(), 256, 128, "gelu", "a gated silu, not gelu"),
        (args(), 256, 128, None, "one without a gate"),
    ],
)
def test_experts(weights: QuantArgs, hidden: int, inner: int, activation: str | None, says: str | None) -> None:
    reason = limits.of_experts("CompressedTensorsWNA16MoE", weights, hidden, inner, activation)
    assert reason is None if says is None else says in str(reason)
    assert limits.of_experts("CompressedTensorsWNA16TritonMoE", weights, hidden, inner, activation) is None
