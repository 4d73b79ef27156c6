"""Shapes that SGLang's Marlin cannot take go to quantdispatch's kernels, and the log says why."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from layers import close, config, finish, load, sglang_config, stored, weights
from quantdispatch_sglang import limits
from sglang.srt.layers.linear import MergedColumnParallelLinear, ReplicatedLinear, RowParallelLinear
from sglang.srt.layers.moe.fused_moe_triton import FusedMoE
from sglang.srt.layers.quantization.marlin_utils import check_marlin_supports_shape

from quantdispatch.registry.args import QuantArgs

PACKED, NAME = "pack-quantized", "m.o_proj"
INT4 = config((["Linear"], weights(4, 64), None, PACKED))


def test_what_sglangs_own_check_takes_is_taken() -> None:
    """SGLang runs it, and discards what it says; it knows of one of the two tiles."""
    for n, k, group in product((64, 96, 128, 192, 256), (64, 96, 128, 192, 256, 512), (32, 64, 128)):
        args = QuantArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=group, dynamic=False)
        ours = limits.of_linear("CompressedTensorsWNA16", args, [n], k) is None
        theirs, _ = check_marlin_supports_shape(n, k, k, group)
        other_tile = n % 128 == 0 and k % 64 == 0 and k % group == 0
        assert ours == (theirs or other_tile), (n, k, group)


@pytest.mark.parametrize(("n", "k", "ours"), [(128, 256, False), (96, 256, True), (128, 192, False), (64, 192, True)])
def test_a_layer(n: int, k: int, ours: bool, ranks: Any, gpu: Callable[[str], None]) -> None:
    gpu("sm90")
    made = sglang_config(INT4)
    with ranks():
        module = ReplicatedLinear(k, n, bias=False, quant_config=made, prefix=NAME)
    assert type(module.quant_method).__name__ == (
        "QuantDispatchLinearMethod" if ours else "CompressedTensorsLinearMethod"
    )
    assert (module.scheme is None) is ours
    assert ("not on SGLang's CompressedTensorsWNA16: N = " in made.report.line()) is ours
    if ours:
        layer, x = stored(INT4, NAME, n, k), torch.randn(3, k)
        load(module, layer.tensors)
        close(finish(module)(x)[0], layer(x), 3e-3)
        assert "1 layer wNa16_int on sglang" not in made.report.line()


def test_a_rank_of_rows_that_divides_a_group(ranks: Any, gpu: Callable[[str], None]) -> None:
    """SGLang asserts that it does not."""
    gpu("sm90")
    block = config((["Linear"], weights(4, 128), None, PACKED))
    layer, x, total = stored(block, NAME, 128, 384), torch.randn(3, 384), torch.zeros(3, 128)
    for rank in range(2):
        with ranks(2, rank):
            module = RowParallelLinear(384, 128, bias=False, quant_config=sglang_config(block), prefix=NAME)
            load(module, layer.tensors)
            total += finish(module).quant_method.apply(module, x.chunk(2, dim=-1)[rank])
    close(total, layer(x), 3e-3)


def test_fused_columns(ranks: Any, gpu: Callable[[str], None]) -> None:
    """The partitions of both members are loaded by their shard ids, as they would be without the detour."""
    gpu("sm90")
    parts = [stored(INT4, f"m.{name}", 48, 256) for name in ("gate_proj", "up_proj")]
    with ranks():
        module = MergedColumnParallelLinear(
            256, [48, 48], bias=False, quant_config=sglang_config(INT4), prefix="m.gate_up_proj"
        )
    for shard, layer in enumerate(parts):
        load(module, layer.tensors, shard)
    x = torch.randn(3, 256)
    close(finish(module)(x)[0], torch.cat([layer(x) for layer in parts], dim=-1), 3e-3)


@pytest.mark.parametrize(("inner", "ours"), [(128, False), (96, True)])
def test_experts(inner: int, ours: bool, ranks: Any, gpu: Callable[[str], None]) -> None:
    gpu("sm90")
    block = config((["Linear"], weights(4, 32), None, PACKED))
    made = sglang_config(block)
    with ranks():
        module = FusedMoE(4, 256, inner, 0, top_k=2, quant_config=made, prefix="m.experts")
    assert type(module.quant_method).__name__.startswith("QuantDispatch") is ours
    assert ("not on SGLang's CompressedTensorsWNA16MoE: an inner size of 96" in made.report.line()) is ours
