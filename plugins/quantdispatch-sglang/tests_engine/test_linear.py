"""Linear modules of SGLang, loaded by its models' way, against the formula of each scheme."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from layers import close, config, finish, inputs, load, sglang_config, stored, weights
from sglang.srt.layers.linear import (
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)

from quantdispatch import ConfigError

PACKED, INTS, FLOATS, MX = "pack-quantized", "int-quantized", "float-quantized", "mxfp4-pack-quantized"
N, K = 128, 256
WAYS: dict[str, tuple[Any, Any, str]] = {
    "int4 g32": (weights(), None, PACKED),
    "int4 g64 asymmetric": (weights(4, 64, symmetric=False), None, PACKED),
    "int8 channel asymmetric": (weights(8, "channel", symmetric=False), None, PACKED),
    "int3 g32 asymmetric": (weights(3, 32, symmetric=False), None, PACKED),
    "int4 g64, activation order": (weights(4, 64, actorder="group"), None, PACKED),
    "int4 g64 asymmetric, activation order": (weights(4, 64, symmetric=False, actorder="group"), None, PACKED),
    "int8 weights per tensor, token inputs": (weights(8, "tensor"), inputs(), INTS),
    "int8 channel, static inputs": (weights(8, "channel"), inputs("tensor"), INTS),
    "int8 channel, static asymmetric inputs": (weights(8, "channel"), inputs("tensor", symmetric=False), INTS),
    "int8 channel, asymmetric token inputs": (weights(8, "channel"), inputs(symmetric=False), INTS),
    "fp8 channel, token inputs": (weights(8, "channel", kind="float"), inputs(kind="float"), FLOATS),
    "fp8 tensor": (weights(8, "tensor", kind="float"), None, FLOATS),
    "fp8 blocks, token inputs": (weights(8, (32, 64), kind="float"), inputs(kind="float"), FLOATS),
    "mxfp4": (weights(4, 32, kind="float", scale_dtype="torch.uint8"), None, MX),
}
#: inputs that are quantized are rounded once more where sums differ in their last bits
TOLERANCE = 3e-3


def block(name: str) -> dict[str, Any]:
    return config((["Linear"], *WAYS[name]))


@pytest.mark.parametrize("name", WAYS)
def test_a_whole_layer(name: str, ranks: Any) -> None:
    """Every scheme, among them those that SGLang gets wrong: per-tensor int8, static and asymmetric inputs."""
    layer = stored(block(name), "m.o_proj", N, K)
    with ranks():
        module = ReplicatedLinear(K, N, bias=False, quant_config=sglang_config(block(name)), prefix="m.o_proj")
        load(module, layer.tensors)
    x = torch.randn(5, K)
    close(finish(module)(x)[0], layer(x), TOLERANCE)
    assert not dict(module.named_parameters()), "what was waited for is gone"


@pytest.mark.parametrize("name", WAYS)
def test_columns_and_rows_of_two_ranks(name: str, ranks: Any) -> None:
    """Fused columns are loaded member by member; the sum over the ranks of rows is the whole layer's."""
    gate, up, down = (stored(block(name), f"m.{last}", *size) for last, size in
                      (("gate_proj", (N, K)), ("up_proj", (N, K)), ("down_proj", (K, 2 * N))))  # fmt: skip
    x, h = torch.randn(5, K), torch.randn(5, 2 * N)
    columns, rows = [], torch.zeros(5, K)
    quantized_inputs = WAYS[name][1]
    for rank in range(2):
        with ranks(2, rank):
            made = sglang_config(block(name))
            first = MergedColumnParallelLinear(K, [N, N], bias=False, quant_config=made, prefix="m.gate_up_proj")
            last = RowParallelLinear(2 * N, K, bias=False, quant_config=made, prefix="m.down_proj")
            load(first, gate.tensors, 0)
            load(first, up.tensors, 1)
            load(last, down.tensors)
            columns.append(finish(first)(x)[0].chunk(2, dim=-1))
            rows += finish(last).quant_method.apply(last, h.chunk(2, dim=-1)[rank])
    for member, layer in enumerate((gate, up)):
        close(torch.cat([part[member] for part in columns], dim=-1), layer(x), TOLERANCE)
    # each rank finds the scale of its own inputs by itself, and so rounds them otherwise than one rank would
    dynamic = quantized_inputs is not None and quantized_inputs["dynamic"]
    rounding = {"int": 2e-2, "float": 5e-2}[quantized_inputs["type"]] if dynamic else TOLERANCE
    close(rows, down(h), rounding)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize(
    "name", ["int4 g64 asymmetric", "int3 g32 asymmetric", "int8 weights per tensor, token inputs"]
)
def test_heads_of_attention(name: str, size: int, ranks: Any) -> None:
    """Four query heads and two for keys and values, of which four ranks have each twice."""
    names = ("q", "k", "v")
    layers = [stored(block(name), f"m.{n}_proj", 128 if n == "q" else 64, K) for n in names]
    x = torch.randn(5, K)
    found: list[list[torch.Tensor]] = [[], [], []]
    for rank in range(size):
        with ranks(size, rank):
            made = sglang_config(block(name))
            module = QKVParallelLinear(K, 32, 4, 2, bias=True, quant_config=made, prefix="m.qkv_proj")
            module.bias.data.fill_(0.5)
            for shard, layer in zip(names, layers, strict=True):
                load(module, layer.tensors, shard)
            parts = finish(module)(x)[0].split(module.output_partition_sizes, dim=-1)
        for values, part in zip(found, parts, strict=True):
            values.append(part)
    for member, layer in enumerate(layers):
        parts = found[member]
        if member and size == 4:
            assert torch.equal(parts[0], parts[1]) and torch.equal(parts[2], parts[3])
            parts = parts[::2]
        close(torch.cat(parts, dim=-1), layer(x) + 0.5, TOLERANCE)


def test_members_that_differ_are_computed_each_in_its_own_way(ranks: Any) -> None:
    """int8 queries, int4 keys, dense values: SGLang would take the first one's scheme for all of them."""
    mixed = config(
        (["re:.*q_proj"], weights(8, "channel"), None, PACKED),
        (["re:.*k_proj"], weights(symmetric=False), None, PACKED),
    )
    layers = [stored(mixed, f"m.{n}_proj", 128 if n == "q" else 64, K) for n in "qkv"]
    x = torch.randn(3, K)
    for size in (1, 2):
        found: list[list[torch.Tensor]] = [[], [], []]
        for rank in range(size):
            with ranks(size, rank):
                module = QKVParallelLinear(
                    K, 32, 4, 2, bias=False, quant_config=sglang_config(mixed), prefix="m.qkv_proj"
                )
                for shard, layer in zip("qkv", layers, strict=True):
                    load(module, layer.tensors, shard)
                parts = finish(module)(x)[0].split(module.output_partition_sizes, dim=-1)
            for values, part in zip(found, parts, strict=True):
                values.append(part)
        for values, layer in zip(found, layers, strict=True):
            close(torch.cat(values, dim=-1), layer(x), TOLERANCE)


def test_members_that_differ_and_cannot_be_told_apart_are_named(ranks: Any) -> None:
    mixed = config((["re:.*q_proj"], weights(8, "channel"), None, PACKED), (["re:.*k_proj"], weights(), None, PACKED))
    mapping = {"pair_proj": ["q_proj", "k_proj"]}
    with ranks(), pytest.raises(ConfigError) as caught:
        ReplicatedLinear(K, N, bias=False, quant_config=sglang_config(mixed, mapping), prefix="m.pair_proj")
    assert "m.q_proj" in str(caught.value) and "m.k_proj" in str(caught.value)


def test_a_projection_fused_in_the_file_is_cut_in_its_members(ranks: Any) -> None:
    name = "int4 g64 asymmetric"
    layer = stored(block(name), "m.gate_up_proj", 2 * N, K)
    x = torch.randn(3, K)
    for size in (1, 2):
        parts = []
        for rank in range(size):
            with ranks(size, rank):
                module = MergedColumnParallelLinear(
                    K, [N, N], bias=False, quant_config=sglang_config(block(name)), prefix="m.gate_up_proj"
                )
                load(module, layer.tensors)
                parts.append(finish(module)(x)[0].chunk(2, dim=-1))
        whole = torch.cat([torch.cat([part[member] for part in parts], dim=-1) for member in range(2)], dim=-1)
        close(whole, layer(x), TOLERANCE)


def test_a_layer_without_tensors_is_named(ranks: Any) -> None:
    with ranks():
        module = ReplicatedLinear(
            K, N, bias=False, quant_config=sglang_config(block("int4 g32")), prefix="m.layers.7.o_proj"
        )
    with pytest.raises(Exception, match=r"m\.layers\.7\.o_proj"):
        finish(module)


def test_weights_can_be_loaded_again(ranks: Any) -> None:
    made = block("int4 g32")
    before, after = (stored(made, "m.o_proj", N, K) for _ in range(2))
    x = torch.randn(3, K)
    with ranks():
        module = ReplicatedLinear(K, N, bias=False, quant_config=sglang_config(made), prefix="m.o_proj")
        for layer in (before, after):
            module.quant_method.restore_weights_before_loading(module)
            load(module, layer.tensors)
            close(finish(module)(x)[0], layer(x), TOLERANCE)
