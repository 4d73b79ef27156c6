"""A rank's part of a layer dequantizes to that part of the whole layer's weight, wherever it begins and ends."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantdispatch.engines.adapters.cutting import Cut, Piece, cut
from quantdispatch.engines.adapters.layers import LayerTable
from quantdispatch.engines.binding import choose_kernel, implementation
from quantdispatch.registry.errors import CheckpointError
from quantdispatch.registry.lazy import load_target
from quantdispatch.registry.operands import Operands
from quantdispatch.registry.scheme import LayerShape, Scheme

N, K = 48, 96
NAME = "model.layers.0.mlp.down_proj"


def scheme_of(weights: dict[str, Any], form: str) -> Scheme:
    group = {"targets": ["Linear"], "weights": weights, "format": form}
    layer = LayerTable({"quant_method": "compressed-tensors", "config_groups": {"g": group}}).layer(NAME)
    assert layer.scheme_object is not None, layer.error
    return layer.scheme_object


def integers(strategy: str, bits: int = 4, symmetric: bool = False, **more: Any) -> dict[str, Any]:
    return {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": strategy, **more}


def operands_of(scheme: Scheme) -> Operands:
    generator = torch.Generator().manual_seed(0)
    args = scheme.layer.weights
    assert args is not None
    scale = next(t for t in scheme.stored(LayerShape(N, K)) if t.name == "weight_scale").shapes[0]
    grid = (1, 1) if args.strategy == "tensor" else scale
    half = 1 << (args.num_bits - 1)
    floats = torch.randint(-3, 4, (N, K), generator=generator).float().to(torch.float8_e4m3fn)
    codes = torch.randint(-half, half, (N, K), generator=generator, dtype=torch.int8)
    zero = torch.randint(-half, half, grid, generator=generator, dtype=torch.int8)
    order = torch.arange(K, dtype=torch.int32) // (args.group_size or K)
    return Operands(
        codes=codes if args.type == "int" else floats,
        scale=torch.rand(grid, generator=generator) + 0.1,
        zero_point=None if args.symmetric else zero,
        g_idx=order[torch.randperm(K, generator=generator)] if args.actorder == "group" else None,
        bias=torch.rand(N, generator=generator),
    )


def dense(scheme: Scheme, facts: Any, operands: Operands) -> torch.Tensor:
    result: torch.Tensor = load_target(scheme.numerics)(facts).dequantize(operands, torch.float32)
    return result


def check(scheme: Scheme, where: Cut) -> Piece:
    operands = operands_of(scheme)
    piece = cut(NAME, scheme, operands, LayerShape(N, K), where)
    rows, columns = where.outputs or (0, N), where.inputs or (0, K)
    whole = dense(scheme, scheme.layer, operands)
    expected = whole[rows[0] : sum(rows), columns[0] : sum(columns)]
    assert torch.equal(dense(scheme, piece.facts, piece.operands), expected)
    assert (piece.shape.n, piece.shape.k) == tuple(expected.shape)
    assert operands.bias is not None and torch.equal(piece.operands.bias, operands.bias[rows[0] : sum(rows)])
    return piece


ANYWHERE = {
    "group": (integers("group", group_size=32), "pack-quantized"),
    "group of 16, 3 bits": (integers("group", 3, group_size=16), "pack-quantized"),
    "channel": (integers("channel", 8, True), "int-quantized"),
    "tensor": (integers("tensor", 4), "pack-quantized"),
    "ordered": (integers("group", group_size=32, actorder="group"), "pack-quantized"),
    "fp8 channel": ({"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}, "float-quantized"),
}


@pytest.mark.parametrize("weights, form", ANYWHERE.values(), ids=ANYWHERE.keys())
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_anywhere(weights: dict[str, Any], form: str, data: st.DataObject) -> None:
    def part(size: int) -> tuple[int, int] | None:
        first = data.draw(st.integers(0, size - 1))
        return data.draw(st.sampled_from([None, (first, data.draw(st.integers(1, size - first)))]))

    check(scheme_of(weights, form), Cut(part(N), part(K)))


@pytest.mark.parametrize("name", ["group", "ordered"])
@pytest.mark.parametrize("inputs", [(0, 48), (48, 48), (8, 40)])
def test_a_part_whose_groups_were_divided_is_one_that_kernels_compute(name: str, inputs: tuple[int, int]) -> None:
    scheme = scheme_of(*ANYWHERE[name])
    piece = check(scheme, Cut(None, inputs))
    spec = type(scheme)(piece.facts).kernel_spec(piece.shape, "float32", tensors=frozenset({"bias"}))
    kernel = choose_kernel(NAME, spec, torch.device("cpu"))
    impl = implementation(kernel, spec)
    x = torch.rand(3, piece.shape.k)
    weight = dense(scheme, piece.facts, piece.operands)
    y = impl.apply(x, impl.pack(piece.operands))
    torch.testing.assert_close(y, x @ weight.T + piece.operands.bias, rtol=1e-4, atol=1e-4)


BLOCKS = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "block", "block_structure": [16, 32]}


@pytest.mark.parametrize("where", [Cut((16, 32), None), Cut(None, (32, 64)), Cut((0, 16), (64, 32)), Cut((32, 16))])
def test_blocks_at_their_borders(where: Cut) -> None:
    check(scheme_of(BLOCKS, "float-quantized"), where)


@pytest.mark.parametrize("where", [Cut((8, 16), None), Cut(None, (0, 40)), Cut(None, (16, 32))])
def test_blocks_are_not_divided(where: Cut) -> None:
    scheme = scheme_of(BLOCKS, "float-quantized")
    with pytest.raises(CheckpointError, match="share one scale") as caught:
        cut(NAME, scheme, operands_of(scheme), LayerShape(N, K), where)
    assert caught.value.layer == NAME


def test_more_than_there_is() -> None:
    scheme = scheme_of(*ANYWHERE["channel"])
    with pytest.raises(CheckpointError, match="has 48"):
        cut(NAME, scheme, operands_of(scheme), LayerShape(N, K), Cut((40, 16)))
