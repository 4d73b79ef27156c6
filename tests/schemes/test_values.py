"""Stored values that cannot be meant are refused by layer and tensor; what can be meant comes back when saved."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quantdispatch.numerics.packing import pack_int32
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.errors import CheckpointError
from quantdispatch.registry.scheme import LayerShape

NAN, INF = float("nan"), float("inf")
LAYER = "model.layers.0.self_attn.q_proj"
INT4 = QuantArgs(num_bits=4, strategy="group", group_size=8, symmetric=False)
STATIC = QuantArgs(num_bits=8, strategy="tensor", symmetric=False)
FP8_STATIC = QuantArgs(num_bits=8, type="float", strategy="tensor")
FP8 = {
    "tensor": QuantArgs(type="float", strategy="tensor"),
    "channel": QuantArgs(type="float", strategy="channel"),
    "block": QuantArgs(type="float", strategy="block", block_structure=[4, 8]),
    "group": QuantArgs(type="float", strategy="group", group_size=8),
}


def int8_layer(n: int = 8, k: int = 16) -> dict[str, torch.Tensor]:
    return {
        "weight": torch.randint(-8, 8, (n, k), dtype=torch.int8),
        "weight_scale": torch.ones(n, k // 8),
        "weight_zero_point": torch.randint(-8, 8, (n, k // 8), dtype=torch.int8),
        "input_scale": torch.tensor([0.05]),
        "input_zero_point": torch.tensor([-3], dtype=torch.int8),
    }


@pytest.mark.parametrize(
    "value", [(NAN, "NaN"), (INF, "infinite"), (-INF, "infinite"), (0.0, "zero"), (-0.5, "negative")]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("tensor", ["weight_scale", "input_scale"])
def test_unusable_scales(
    scheme_of: Any, numerics_of: Any, tensor: str, value: tuple[float, str], dtype: torch.dtype
) -> None:
    number, word = value
    tensors = int8_layer()
    tensors[tensor] = tensors[tensor].to(dtype)
    tensors[tensor].view(-1)[-1] = number
    scheme = scheme_of("int-quantized", INT4, STATIC)
    with pytest.raises(CheckpointError) as caught:
        numerics_of(scheme).operands(tensors, LayerShape(8, 16), LAYER)
    assert caught.value.layer == LAYER and caught.value.field == tensor
    assert word in str(caught.value) and "1 unusable" in str(caught.value)


@pytest.mark.parametrize(
    ("tensor", "value", "word"),
    [
        ("output_scale", 0.0, "zero"),  # an uncalibrated scale, which would quietly turn the outputs' quantization off
        ("output_scale", NAN, "NaN"),
        ("output_scale", INF, "infinite"),
        ("output_scale", -1.0, "negative"),
        ("output_zero_point", 128.0, "-128..127"),
        ("output_zero_point", 0.5, "0.5"),
        ("input_scale", 0.0, "zero"),
    ],
)
def test_unusable_output_parameters(scheme_of: Any, numerics_of: Any, tensor: str, value: float, word: str) -> None:
    tensors = {**int8_layer(), "output_scale": torch.ones(1), "output_zero_point": torch.zeros(1)}
    tensors[tensor] = torch.tensor([value])
    numerics = numerics_of(scheme_of("int-quantized", INT4, STATIC, outputs=STATIC))
    with pytest.raises(CheckpointError) as caught:
        numerics.operands(tensors, LayerShape(8, 16), LAYER)
    assert caught.value.layer == LAYER and caught.value.field == tensor and word in str(caught.value)


@pytest.mark.parametrize("format", ["pack-quantized", "int-quantized"])
@pytest.mark.parametrize(
    "inputs",
    [QuantArgs(num_bits=4, strategy="tensor", symmetric=False), FP8_STATIC, STATIC],
    ids=lambda a: a.describe(),
)
def test_static_inputs_of_every_kind_come_back(
    scheme_of: Any, numerics_of: Any, written: Any, headers: Any, format: str, inputs: QuantArgs
) -> None:
    weights = QuantArgs(num_bits=4, strategy="block", block_structure=[8, 32], symmetric=False)
    tensors = {**written(format, weights, 24, 70), "input_scale": torch.tensor([0.25], dtype=torch.bfloat16)}
    if not inputs.symmetric:
        tensors["input_zero_point"] = torch.tensor([-8 if inputs.num_bits == 4 else -128], dtype=torch.int8)
    scheme = scheme_of(format, weights, inputs)
    shape = scheme.check(LAYER, headers(tensors))
    numerics = numerics_of(scheme)
    stored = numerics.stored(numerics.operands(tensors, shape, LAYER), shape)
    assert set(stored) == set(tensors)
    for name, tensor in tensors.items():
        assert stored[name].dtype == tensor.dtype and torch.equal(stored[name], tensor), name


def test_int4_zero_points_have_four_bits(scheme_of: Any, numerics_of: Any) -> None:
    inputs = QuantArgs(num_bits=4, strategy="tensor", symmetric=False)
    tensors = {**int8_layer(), "input_zero_point": torch.tensor([8], dtype=torch.int8)}
    with pytest.raises(CheckpointError, match="-8..7") as caught:
        numerics_of(scheme_of("int-quantized", INT4, inputs)).operands(tensors, LayerShape(8, 16), LAYER)
    assert caught.value.field == "input_zero_point"


@pytest.mark.parametrize("strategy", FP8)
@pytest.mark.parametrize("number", [NAN, INF, 0.0, -1.0])
@pytest.mark.parametrize("tensor", ["weight_scale", "input_scale"])
def test_unusable_fp8_scales(scheme_of: Any, numerics_of: Any, strategy: str, number: float, tensor: str) -> None:
    grid = {"tensor": (1,), "channel": (8, 1), "block": (2, 2), "group": (8, 2)}[strategy]
    tensors = {
        "weight": torch.ones(8, 16).to(torch.float8_e4m3fn),
        "weight_scale": torch.ones(grid, dtype=torch.bfloat16),
        "input_scale": torch.ones((), dtype=torch.bfloat16),
    }
    numerics = numerics_of(scheme_of("float-quantized", FP8[strategy], FP8_STATIC))
    assert numerics.operands(tensors, LayerShape(8, 16), LAYER).input_scale.shape == (1,)
    tensors[tensor].view(-1)[0] = number
    with pytest.raises(CheckpointError, match=f"{LAYER}.*{tensor}"):
        numerics.operands(tensors, LayerShape(8, 16), LAYER)


@pytest.mark.parametrize(
    ("tensor", "value", "word"),
    [
        ("weight_zero_point", torch.full((8, 2), 8, dtype=torch.int8), "-8..7"),
        ("weight_zero_point", torch.full((8, 2), -9, dtype=torch.int32), "-8..7"),
        ("weight_zero_point", torch.full((8, 2), NAN), "nan"),
        ("weight_zero_point", torch.full((8, 2), 0.5), "0.5"),
        ("input_zero_point", torch.tensor([128], dtype=torch.int32), "-128..127"),
        ("input_zero_point", torch.tensor([NAN]), "nan"),
        ("weight", torch.full((8, 16), 8, dtype=torch.int8), "-8..7"),
        ("weight", torch.full((8, 16), -9, dtype=torch.int8), "-8..7"),
        ("weight", torch.zeros(8, 15, dtype=torch.int8), "[8, 15]"),
        ("weight_scale", torch.ones(8, 3), "[8, 3]"),
    ],
)
def test_values_out_of_range(scheme_of: Any, numerics_of: Any, tensor: str, value: torch.Tensor, word: str) -> None:
    tensors = {**int8_layer(), tensor: value}
    with pytest.raises(CheckpointError) as caught:
        numerics_of(scheme_of("int-quantized", INT4, STATIC)).operands(tensors, LayerShape(8, 16), LAYER)
    assert caught.value.layer == LAYER and caught.value.field == tensor and word in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.bfloat16, torch.float32])
def test_zero_points_of_any_type_are_small_integers(scheme_of: Any, numerics_of: Any, dtype: torch.dtype) -> None:
    tensors = int8_layer()
    expected = tensors["weight_zero_point"].clone()
    tensors["weight_zero_point"] = expected.to(dtype)
    operands = numerics_of(scheme_of("int-quantized", INT4, STATIC)).operands(tensors, LayerShape(8, 16), LAYER)
    assert operands.zero_point.dtype == torch.int8 and torch.equal(operands.zero_point, expected)


G_IDX = QuantArgs(num_bits=4, strategy="group", group_size=8, actorder="group", symmetric=False)


def ordered_layer(g_idx: torch.Tensor) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    k = g_idx.numel()
    codes = torch.randint(-8, 8, (8, k), generator=generator).to(torch.int8)
    zero_point = torch.randint(-8, 8, (8, k // 8), generator=generator).to(torch.int8)
    return {
        "weight_packed": pack_int32(codes, 4),
        "weight_scale": torch.rand(8, k // 8, generator=generator).add(0.1).to(torch.bfloat16),
        "weight_zero_point": pack_int32(zero_point, 4, axis=0),
        "weight_shape": torch.tensor([8, k]),
        "weight_g_idx": g_idx.to(torch.int32),
    }


def decompress_0_17(
    codes: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, g_idx: torch.Tensor
) -> torch.Tensor:
    """What releases up to 0.17 did with a g_idx: bring the columns into the order of their groups, dequantize the
    groups in a row, bring the columns back (compressed-tensors 0.17.0, quantization/lifecycle/forward_helpers.py)."""
    order = torch.argsort(g_idx)
    grouped = codes[:, order].reshape(codes.shape[0], scale.shape[1], -1).to(scale.dtype)
    flat = ((grouped - zero_point[..., None].to(scale.dtype)) * scale[..., None]).reshape(codes.shape)
    return flat[:, torch.argsort(order)]


@pytest.mark.parametrize("groups", [1, 3, 8])
def test_activation_ordering_by_group(headers: Any, scheme_of: Any, numerics_of: Any, groups: int) -> None:
    g_idx = torch.arange(groups).repeat_interleave(8)[torch.randperm(groups * 8)]
    tensors = ordered_layer(g_idx)
    scheme = scheme_of("pack-quantized", G_IDX)
    shape = scheme.check("layer", headers(tensors))
    numerics = numerics_of(scheme)
    operands = numerics.operands(tensors, shape, LAYER)
    expected = decompress_0_17(operands.codes, operands.scale, operands.zero_point, g_idx)
    assert torch.equal(numerics.dequantize(operands), expected)
    stored = numerics.stored(operands, shape)
    assert set(stored) == set(tensors) and all(torch.equal(stored[name], tensors[name]) for name in tensors)


def test_an_unset_g_idx_means_columns_in_order(scheme_of: Any, numerics_of: Any) -> None:
    tensors = ordered_layer(torch.full((24,), -1))
    numerics = numerics_of(scheme_of("pack-quantized", G_IDX))
    operands = numerics.operands(tensors, LayerShape(8, 24, "dense"), LAYER)
    assert operands.g_idx is None
    stored = numerics.stored(operands, LayerShape(8, 24, "dense"))
    assert all(torch.equal(stored[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("entry", [-1, 3, 2, -5])
def test_a_g_idx_of_other_groups_is_refused(scheme_of: Any, numerics_of: Any, entry: int) -> None:
    g_idx = torch.arange(3).repeat_interleave(8)
    g_idx[0] = entry
    with pytest.raises(CheckpointError, match="weight_g_idx") as caught:
        numerics_of(scheme_of("pack-quantized", G_IDX)).operands(
            ordered_layer(g_idx), LayerShape(8, 24, "dense"), LAYER
        )
    assert caught.value.layer == LAYER and caught.value.field == "weight_g_idx"


@pytest.mark.parametrize("bits", [3, 5, 6, 7])
def test_padded_words_load_and_are_saved_dense(headers: Any, scheme_of: Any, numerics_of: Any, bits: int) -> None:
    weights = QuantArgs(num_bits=bits, strategy="group", group_size=16, symmetric=False)
    half = 1 << (bits - 1)
    codes = torch.randint(-half, half, (24, 64), dtype=torch.int8)
    zero_point = torch.randint(-half, half, (24, 4), dtype=torch.int8)

    def layer(layout: str) -> dict[str, torch.Tensor]:
        return {
            "weight_packed": pack_int32(codes, bits, layout=layout),
            "weight_scale": torch.ones(24, 4, dtype=torch.bfloat16),
            "weight_zero_point": pack_int32(zero_point, bits, axis=0, layout=layout),
            "weight_shape": torch.tensor([24, 64]),
        }

    scheme = scheme_of("pack-quantized", weights, version="0.17.0")
    shape = scheme.check("layer", headers(layer("padded")))
    assert shape.packing == "padded"
    numerics = numerics_of(scheme)
    operands = numerics.operands(layer("padded"), shape, LAYER)
    assert torch.equal(operands.codes, codes) and torch.equal(operands.zero_point, zero_point)
    stored, dense = numerics.stored(operands, shape), layer("dense")
    assert set(stored) == set(dense) and all(torch.equal(stored[name], dense[name]) for name in dense)


@pytest.mark.parametrize("outputs", [None, STATIC])
def test_activation_parameters_bias_and_strangers_come_back(scheme_of: Any, numerics_of: Any, outputs: Any) -> None:
    output = {"output_scale": torch.ones(1), "output_zero_point": torch.tensor([7], dtype=torch.int8)}
    tensors = {**int8_layer(), **output, "bias": torch.randn(8), "stranger": torch.ones(3)}
    numerics = numerics_of(scheme_of("int-quantized", INT4, STATIC, outputs=outputs))
    operands = numerics.operands(tensors, LayerShape(8, 16), LAYER)
    # what the args do not speak of is kept without a meaning
    assert operands.extra.keys() == {"stranger"} | (set(output) if outputs is None else set())
    assert (operands.output_scale is None) == (outputs is None)
    assert operands.input_zero_point.dtype == torch.int8
    stored = numerics.stored(operands, LayerShape(8, 16))
    assert set(stored) == set(tensors) and all(torch.equal(stored[name], tensors[name]) for name in tensors)


def test_loading_changes_no_stored_tensor(scheme_of: Any, numerics_of: Any) -> None:
    tensors = ordered_layer(torch.arange(3).repeat_interleave(8))
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    numerics = numerics_of(scheme_of("pack-quantized", G_IDX))
    operands = numerics.operands(tensors, LayerShape(8, 24, "dense"), LAYER)
    numerics.dequantize(operands)
    numerics.forward(torch.randn(2, 24), operands)
    assert all(torch.equal(before[name], tensors[name]) for name in tensors)
