"""What the headers alone decide: N, K and layout, or an error that names layer, tensor, observed and required."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from quantdispatch import schemes
from quantdispatch.numerics.packing import pack_int32, packed_width
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.errors import CheckpointError
from quantdispatch.registry.scheme import LayerShape

G16 = QuantArgs(num_bits=4, strategy="group", group_size=16)
G16_ASYM = QuantArgs(num_bits=4, strategy="group", group_size=16, symmetric=False)
CHANNEL = QuantArgs(num_bits=4, strategy="channel")
STATIC = QuantArgs(num_bits=8, strategy="tensor", symmetric=False)
FP8_BLOCK = QuantArgs(num_bits=8, type="float", strategy="block", block_structure=[16, 16])


def packed(n: int, k: int, weights: QuantArgs, layout: str = "dense") -> dict[str, torch.Tensor]:
    groups = k // weights.group_size if weights.group_size else 1
    block = weights.block_structure
    grid = (-(-n // block[0]), -(-k // block[1])) if block else (n, groups)
    tensors = {
        "weight_packed": torch.zeros(n, packed_width(k, weights.num_bits, layout), dtype=torch.int32),
        "weight_scale": torch.ones(grid, dtype=torch.bfloat16),
        "weight_shape": torch.tensor([n, k]),
    }
    if block and not weights.symmetric:
        tensors["weight_zero_point"] = torch.zeros(grid, dtype=torch.int8)
    elif not weights.symmetric:
        rows = packed_width(n, weights.num_bits, layout)
        tensors["weight_zero_point"] = torch.zeros(rows, groups, dtype=torch.int32)
    return tensors


@pytest.mark.parametrize("bits", [3, 5, 6, 7])
@pytest.mark.parametrize("k", [64, 96, 400])
@pytest.mark.parametrize("layout", ["dense", "padded"])
@pytest.mark.parametrize("strategy", ["channel", "group"])
@pytest.mark.parametrize("version", [None, "0.17.0", "0.20.1"])
def test_the_stored_width_tells_the_layout(
    headers: Any, scheme_of: Any, bits: int, k: int, layout: str, strategy: str, version: str | None
) -> None:
    group = 16 if strategy == "group" else None
    weights = QuantArgs(num_bits=bits, strategy=strategy, group_size=group, symmetric=False)
    tensors = packed(24, k, weights, layout)
    shape = scheme_of("pack-quantized", weights, version=version).check("layer", headers(tensors))
    assert shape == LayerShape(24, k, layout)


@pytest.mark.parametrize(
    ("version", "layout"),
    [("0.17.0", "padded"), ("0.9.4", "padded"), ("0.16.0.a20260301", "padded"), (None, "padded"), ("null", "padded"),
     ("0.18.0", "dense"), ("0.20.1", "dense"), ("1.0", "dense")],
)  # fmt: skip
def test_where_both_widths_are_the_same_the_writer_decides(
    headers: Any, scheme_of: Any, version: str | None, layout: str
) -> None:
    weights = QuantArgs(num_bits=3, strategy="channel")
    assert packed_width(20, 3, "dense") == packed_width(20, 3, "padded")
    tensors = packed(4, 20, weights)
    assert scheme_of("pack-quantized", weights, version=version).check("layer", headers(tensors)).packing == layout


def test_zero_points_tell_the_layout_where_the_weight_does_not(headers: Any, scheme_of: Any) -> None:
    weights = QuantArgs(num_bits=3, strategy="channel", symmetric=False)
    for layout in ("dense", "padded"):
        tensors = packed(64, 20, weights, layout)
        for version in ("0.17.0", "0.20.1"):
            scheme = scheme_of("pack-quantized", weights, version=version)
            assert scheme.check("layer", headers(tensors)).packing == layout


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_bits_that_fill_a_word_have_one_layout(headers: Any, scheme_of: Any, bits: int) -> None:
    weights = QuantArgs(num_bits=bits, strategy="channel")
    shape = scheme_of("pack-quantized", weights, version="0.17.0").check("layer", headers(packed(4, 30, weights)))
    assert shape == LayerShape(4, 30, "dense")


def test_group_scales_stand_in_for_a_missing_weight_shape(headers: Any, scheme_of: Any) -> None:
    tensors = packed(24, 48, G16_ASYM)
    del tensors["weight_shape"]
    assert scheme_of("pack-quantized", G16_ASYM).check("layer", headers(tensors)) == LayerShape(24, 48, "dense")


@pytest.mark.parametrize(
    ("bits", "layout", "version"), [(4, "dense", None), (3, "dense", "0.19.0"), (3, "padded", "0.16")]
)
def test_headers_without_bytes_give_the_largest_k_that_fits(
    headers: Any, scheme_of: Any, bits: int, layout: str, version: str | None
) -> None:
    weights = QuantArgs(num_bits=bits, strategy="channel")
    k = 320  # fills its words in every layout here
    tensors = headers(packed(24, k, weights, layout), bytes_too=False)
    assert scheme_of("pack-quantized", weights, version=version).check("layer", tensors) == LayerShape(24, k, layout)


def test_a_32_bit_weight_shape_is_read(headers: Any, scheme_of: Any) -> None:
    tensors = packed(24, 50, CHANNEL)
    tensors["weight_shape"] = tensors["weight_shape"].to(torch.int32)
    assert scheme_of("pack-quantized", CHANNEL).check("layer", headers(tensors)).k == 50


def _without(name: str) -> Any:
    return lambda tensors: tensors.pop(name)


def _with(name: str, value: torch.Tensor) -> Any:
    return lambda tensors: tensors.update({name: value})


G_IDX = QuantArgs(num_bits=4, strategy="group", group_size=16, actorder="group")
BLOCK = QuantArgs(num_bits=4, strategy="block", block_structure=[16, 32], symmetric=False)
BIT = QuantArgs(num_bits=1, strategy="channel")
INT4_STATIC = QuantArgs(num_bits=4, strategy="tensor", symmetric=False)
FP8_STATIC = QuantArgs(num_bits=8, type="float", strategy="tensor")
BROKEN = [
    # (weights, inputs, change to a correct 24 x 48 layer, tensor named, in the message)
    (G16, None, _without("weight_packed"), "weight_packed", ["needs weight_packed", "weight_scale"]),
    (G16, None, _without("weight_scale"), "weight_scale", ["weight_scale"]),
    (G16_ASYM, None, _without("weight_zero_point"), "weight_zero_point", ["weight_zero_point"]),
    (CHANNEL, None, _without("weight_shape"), "weight_shape", ["weight_shape"]),
    (G_IDX, None, lambda tensors: None, "weight_g_idx", ["weight_g_idx"]),
    (G_IDX, None, _with("weight_g_idx", torch.zeros(47, dtype=torch.int32)), "weight_g_idx", ["[47]", "[48]"]),
    (G16, STATIC, lambda tensors: None, "input_scale", ["input_scale", "input_zero_point"]),
    (G16, INT4_STATIC, _with("input_scale", torch.ones(1)), "input_zero_point", ["wNa4_int", "input_zero_point"]),
    (G16, FP8_STATIC, lambda tensors: None, "input_scale", ["w4a8_fp8 needs input_scale"]),
    (G16, FP8_STATIC, _with("input_scale", torch.ones(1, dtype=torch.int32)), "input_scale", ["I32", "BF16"]),
    (BIT, None, _with("weight_packed", torch.zeros(24, 3, dtype=torch.int32)), "weight_packed", ["[24, 3]", "[24, 2]"]),
    (BLOCK, None, _without("weight_shape"), "weight_shape", ["weight_shape"]),
    (BLOCK, None, _with("weight_scale", torch.ones(24, 2)), "weight_scale", ["[24, 2]", "[2, 2]"]),
    (BLOCK, None, _with("weight_zero_point", torch.zeros(2, 2, dtype=torch.uint8)), "weight_zero_point", ["U8", "I8"]),
    (BLOCK, None, _with("weight_zero_point", torch.zeros(3, 2, dtype=torch.int32)), "weight_zero_point",
     ["[3, 2]", "[2, 2]"]),
    (G16, None, _with("weight_packed", torch.zeros(24, 6, dtype=torch.int64)), "weight_packed", ["I64", "I32"]),
    (G16, None, _with("weight_packed", torch.zeros(24, 7, dtype=torch.int32)), "weight_packed", ["[24, 7]", "[24, 6]"]),
    (G16, None, _with("weight_packed", torch.zeros(24 * 6, dtype=torch.int32)), "weight_packed", ["[144]", "[N, K]"]),
    (G16, None, _with("weight_scale", torch.ones(24, 4)), "weight_scale", ["[24, 4]", "[24, 3]"]),
    (G16, None, _with("weight_scale", torch.ones(24, 3, dtype=torch.int32)), "weight_scale", ["I32", "BF16"]),
    (CHANNEL, None, _with("weight_scale", torch.ones(24)), "weight_scale", ["[24]", "[24, 1]"]),
    (G16_ASYM, None, _with("weight_zero_point", torch.zeros(24, 3, dtype=torch.int32)), "weight_zero_point",
     ["[24, 3]", "[3, 3]"]),
    (G16_ASYM, None, _with("weight_zero_point", torch.zeros(3, 3, dtype=torch.int8)), "weight_zero_point",
     ["I8", "I32"]),
    (G16, None, _with("weight_shape", torch.tensor([25, 48])), "weight_shape", ["[25, 48]", "24 rows"]),
    (G16, None, _with("weight_shape", torch.tensor([24, -48])), "weight_shape", ["-48"]),
    (G16, None, _with("weight_shape", torch.tensor([24, 64])), "weight_packed", ["6 words", "[24, 8]"]),
    (G16, None, _with("weight_shape", torch.tensor([24, 44])), "weights.group_size", ["K = 44", "group size 16"]),
    (G16, None, _with("weight_shape", torch.tensor([24.0, 48.0])), "weight_shape", ["F32", "I64"]),
    (G16, None, _with("weight_shape", torch.tensor([24, 48, 1])), "weight_shape", ["[3]"]),
    (G16, None, _with("bias", torch.zeros(23)), "bias", ["[23]", "[24]"]),
    (G16, None, _with("bias", torch.zeros(24, dtype=torch.int32)), "bias", ["I32"]),
]  # fmt: skip


@pytest.mark.parametrize("weights", [BLOCK, BIT], ids=lambda args: args.describe())
@pytest.mark.parametrize("k", [48, 33])
def test_blocks_need_not_divide(headers: Any, scheme_of: Any, weights: QuantArgs, k: int) -> None:
    scheme = scheme_of("pack-quantized", weights)
    assert scheme.check("layer", headers(packed(24, k, weights))) == LayerShape(24, k, "dense")


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    ("name", "change", "word"),
    [
        ("output_scale", _without("output_scale"), "wNa8o8_int needs output_scale"),
        ("output_scale", _with("output_scale", torch.ones(24, 1)), "[24, 1]"),
        ("output_scale", _with("output_scale", torch.ones(1, dtype=torch.int8)), "I8"),
        ("input_scale", _without("input_scale"), "wNa8o8_int needs input_scale"),
        ("output_zero_point", _without("output_zero_point"), "wNa8o8_int needs output_zero_point"),
        ("output_zero_point", _with("output_zero_point", torch.zeros(2, dtype=torch.int8)), "[2]"),
    ],
)
def test_static_outputs_have_their_scale(
    headers: Any, scheme_of: Any, name: str, change: Any, word: str, symmetric: bool
) -> None:
    outputs = QuantArgs(num_bits=8, strategy="tensor", symmetric=symmetric)
    scheme = scheme_of("pack-quantized", G16, outputs, outputs=outputs)
    sides = {f"{side}_scale": torch.ones(1) for side in ("input", "output")}
    if not symmetric:
        sides |= {f"{side}_zero_point": torch.zeros(1, dtype=torch.int8) for side in ("input", "output")}
    tensors = packed(24, 48, G16) | sides
    assert scheme.check("layer", headers(tensors)) == LayerShape(24, 48, "dense")
    if symmetric and name == "output_zero_point":
        assert "output_zero_point" not in {tensor.name for tensor in scheme.stored(LayerShape(24, 48, "dense"))}
        return
    change(tensors)
    with pytest.raises(CheckpointError) as caught:
        scheme.check("layer", headers(tensors))
    assert caught.value.field == name and word in str(caught.value)


@pytest.mark.parametrize(("weights", "inputs", "change", "field", "words"), BROKEN)
def test_headers_that_contradict_the_scheme(
    headers: Any, scheme_of: Any, weights: Any, inputs: Any, change: Any, field: str, words: list[str]
) -> None:
    tensors = packed(24, 48, weights)
    change(tensors)
    with pytest.raises(CheckpointError) as caught:
        scheme_of("pack-quantized", weights, inputs).check("model.layers.3.mlp.up_proj", headers(tensors))
    error = caught.value
    assert error.layer == "model.layers.3.mlp.up_proj" and error.field == field
    text = str(error)
    assert text.startswith("model.layers.3.mlp.up_proj: ") and "\n" not in text
    assert [word for word in words if word not in text] == []


UNPACKED = [
    ("int-quantized", QuantArgs(num_bits=4, strategy="group", group_size=7),
     {"weight": torch.zeros(4, 24, dtype=torch.int8)}, "weights.group_size", "K = 24"),
    ("int-quantized", CHANNEL, {"weight": torch.zeros(4, 24)}, "weight", "F32"),
    ("float-quantized", QuantArgs(type="float", strategy="channel"),
     {"weight": torch.zeros(4, 24, dtype=torch.int8)}, "weight", "I8"),
    ("float-quantized", FP8_BLOCK,
     {"weight": torch.zeros(17, 24).to(torch.float8_e4m3fn), "weight_scale": torch.ones(1, 1)},
     "weight_scale", "[2, 2]"),
    ("float-quantized", FP8_BLOCK, {"weight": torch.zeros(17).to(torch.float8_e4m3fn)}, "weight", "[17]"),
    ("float-quantized", FP8_BLOCK, {"weight": torch.zeros(0, 4).to(torch.float8_e4m3fn)}, "weight", "[0, 4]"),
    (None, None, {"weight": torch.zeros(4, 24, dtype=torch.int8)}, "weight", "I8"),
]  # fmt: skip


@pytest.mark.parametrize(("format", "weights", "tensors", "field", "word"), UNPACKED)
def test_unpacked_headers_that_contradict_the_scheme(
    headers: Any, scheme_of: Any, format: str, weights: Any, tensors: dict[str, torch.Tensor], field: str, word: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        scheme_of(format, weights).check("layer", headers({"weight_scale": torch.ones(4, 1), **tensors}))
    assert caught.value.field == field and word in str(caught.value)


@pytest.mark.parametrize("shape", [(1,), ()])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_scales_of_one_value_may_be_scalars(headers: Any, scheme_of: Any, shape: Any, dtype: torch.dtype) -> None:
    one = torch.ones(shape, dtype=dtype)
    weights, inputs = QuantArgs(type="float", strategy="tensor"), QuantArgs(type="float", strategy="tensor")
    tensors = {"weight": torch.ones(4, 6).to(torch.float8_e4m3fn), "weight_scale": one, "input_scale": one}
    assert scheme_of("float-quantized", weights, inputs).check("layer", headers(tensors)) == LayerShape(4, 6)


def test_kernel_specs_carry_what_kernels_test(scheme_of: Any) -> None:
    token = QuantArgs(num_bits=8, strategy="token", dynamic=True)
    for weights, inputs, expected in [
        (G16, None, ("wNa16_int", 16, False)),
        (G_IDX, None, ("wNa16_int", 16, True)),
        (CHANNEL, token, ("wNa8_int", 48, False)),
        (QuantArgs(type="float", strategy="tensor"), None, ("w8a16_fp8", 48, False)),
        (FP8_BLOCK, QuantArgs(type="float", strategy="token", dynamic=True), ("w8a8_fp8", 16, False)),
        (G16, QuantArgs(num_bits=4, strategy="token", dynamic=True), ("wNa4_int", 16, False)),
        (G16, QuantArgs(type="float", strategy="token", dynamic=True), ("w4a8_fp8", 16, False)),
        (QuantArgs(num_bits=4, strategy="block", block_structure=[8, 16]), None, ("wNa16_int", 16, False)),
        (None, None, ("dense", 48, False)),
    ]:
        scheme = scheme_of("pack-quantized", weights, inputs)
        spec = scheme.kernel_spec(LayerShape(24, 48), "bfloat16", tensors=frozenset({"weight", "bias"}))
        assert (spec.scheme, spec.group_size, spec.has_g_idx) == expected
        assert (spec.op, spec.kind, spec.n, spec.k, spec.dtype, spec.bias) == (
            "linear",
            "linear",
            24,
            48,
            "bfloat16",
            True,
        )
        assert (spec.weights, spec.inputs, spec.outputs) == (weights, inputs, None)
        assert spec.reference == scheme.numerics and spec.reference.startswith("quantdispatch.schemes.reference.")
        unknown = scheme.kernel_spec(None, "bfloat16")
        assert (unknown.n, unknown.k, unknown.bias) == (None, None, False)
        assert unknown.group_size == (expected[1] if weights is not None and expected[1] == 16 else None)


def test_explaining_needs_no_torch() -> None:
    modules = ", ".join(path.stem for path in Path(schemes.__file__).parent.glob("*.py") if path.stem != "__init__")
    assert "wna8o8_int" in modules and "kv_fp8" in modules
    script = f"import sys; from quantdispatch.schemes import {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_an_embedding_is_looked_up_and_outputs_are_told(scheme_of: Any) -> None:
    spec = scheme_of("pack-quantized", G16, kind="embedding").kernel_spec(LayerShape(24, 48), "bfloat16")
    assert (spec.op, spec.kind, spec.n, spec.k, spec.group_size) == ("embedding", "embedding", 24, 48, 16)
    for kind in ("linear", "lm_head", "moe"):
        spec = scheme_of("pack-quantized", G16, STATIC, outputs=STATIC, kind=kind).kernel_spec(None, "bfloat16")
        assert (spec.op, spec.scheme, spec.outputs) == ("linear", "wNa8o8_int", STATIC)


def test_every_tensor_has_an_axis_for_each_dimension(scheme_of: Any) -> None:
    for format in ("pack-quantized", "int-quantized"):
        for weights in (G16_ASYM, G_IDX, CHANNEL, BLOCK):
            for stored in scheme_of(format, weights, STATIC, outputs=STATIC).stored(LayerShape(24, 48, "dense")):
                assert len(stored.axes) == len(stored.shapes[0]), stored
                assert stored.packed is None or stored.packed in stored.axes
    assert pack_int32(torch.zeros(24, 3, dtype=torch.int8), 4, axis=0).shape == (3, 3)
