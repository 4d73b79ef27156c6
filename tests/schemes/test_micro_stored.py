"""nvfp4 and mx layers whose headers or values cannot be meant: errors that name layer and tensor."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from quantdispatch.engines.tensors import described
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.errors import CheckpointError
from quantdispatch.registry.facts import LayerFacts
from quantdispatch.registry.scheme import LayerShape, Scheme
from quantdispatch.registry.sharding import shard
from quantdispatch.schemes.mx import W4A4MxFp4, W4A16MxFp4, W6A16MxFp6, W8A16MxFp8
from quantdispatch.schemes.nvfp4 import W4A4NvFp4, W4A16NvFp4

LAYER = "model.layers.3.mlp.down_proj"
N, K = 24, 96
NAN, INF = float("nan"), float("inf")
Tensors = dict[str, torch.Tensor]
NV: dict[str, Any] = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}


def mx(bits: int) -> QuantArgs:
    return QuantArgs(num_bits=bits, type="float", strategy="group", group_size=32, scale_dtype="uint8")


def _scheme(cls: type[Scheme], format: str, weights: QuantArgs, inputs: QuantArgs | None = None) -> Scheme:
    return cls(LayerFacts("linear", format, weights, inputs))


NV4 = _scheme(W4A16NvFp4, "nvfp4-pack-quantized", QuantArgs(**NV))
NV44 = _scheme(W4A4NvFp4, "nvfp4-pack-quantized", QuantArgs(**NV), QuantArgs(**NV, dynamic="local"))
MX4 = _scheme(W4A16MxFp4, "mxfp4-pack-quantized", mx(4))
MX6 = _scheme(W6A16MxFp6, "mxfp6-pack-quantized", mx(6))
MX8 = _scheme(W8A16MxFp8, "mxfp8-quantized", mx(8))
PLAIN8 = _scheme(W8A16MxFp8, "float-quantized", mx(8))
ALL = [NV4, NV44, MX4, MX6, MX8, PLAIN8]


def layer(scheme: Scheme, n: int = N, k: int = K) -> Tensors:
    """Correct tensors of a layer."""
    bits = scheme.layer.weights.num_bits  # type: ignore[union-attr]
    one = torch.ones(1)
    tensors: Tensors = {}
    if bits == 8:
        tensors["weight"] = torch.ones(n, k).to(torch.float8_e4m3fn)
    else:
        tensors["weight_packed"] = torch.full((n, k * bits // 8), 0x21, dtype=torch.uint8)
    if scheme in (NV4, NV44):
        scale = torch.ones(n, k // 16).to(torch.float8_e4m3fn)
        tensors |= {"weight_scale": scale, "weight_global_scale": one}
        return tensors | ({"input_global_scale": one.clone()} if scheme is NV44 else {})
    return tensors | {"weight_scale": torch.full((n, k // 32), 120, dtype=torch.uint8)}


@pytest.mark.parametrize("scheme", ALL, ids=lambda scheme: scheme.name)
def test_correct_layers_pass(numerics_of: Any, scheme: Scheme) -> None:
    tensors = layer(scheme) | {"bias": torch.zeros(N)}
    assert scheme.check(LAYER, described(tensors)) == LayerShape(N, K)
    operands = numerics_of(scheme).operands(tensors, LayerShape(N, K), LAYER)
    assert operands.codes.shape == (N, K) and operands.bias is tensors["bias"]
    for stored in scheme.stored(LayerShape(N, K)):
        assert len(stored.axes) == len(stored.shapes[0]), stored
        assert stored.packed is None or stored.packed in stored.axes


def _without(name: str) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.pop(name)


def _with(name: str, value: torch.Tensor) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.update({name: value})


def _bytes(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.uint8)


BROKEN: list[tuple[Scheme, Callable[[Tensors], Any], str, list[str]]] = [
    # (scheme, change to a correct layer, field named, words in the message)
    *((scheme, _without("weight_scale"), "weight_scale", ["needs weight_scale", scheme.name]) for scheme in ALL),
    *((scheme, _without("weight_packed"), "weight_packed", ["weight_packed"]) for scheme in (NV4, NV44, MX4, MX6)),
    *((scheme, _without("weight"), "weight", ["weight"]) for scheme in (MX8, PLAIN8)),
    *((scheme, _without("weight_global_scale"), "weight_global_scale", []) for scheme in (NV4, NV44)),
    (NV44, _without("input_global_scale"), "input_global_scale", ["input_global_scale"]),
    # codes
    *((scheme, _with("weight_packed", torch.zeros(N, 12, dtype=torch.int32)), "weight_packed", ["I32", "U8"])
      for scheme in (NV4, MX4)),
    *((scheme, _with("weight_packed", _bytes(N * 48)), "weight_packed", ["[1152]", "[N, K]"])
      for scheme in (NV4, MX4, MX6)),
    *((scheme, _with("weight_packed", _bytes(0, 48)), "weight_packed", ["[0, 48]"]) for scheme in (NV4, MX4, MX6)),
    (NV4, _with("weight_packed", _bytes(N, 52)), "weights.group_size", ["K = 104", "16"]),
    (MX4, _with("weight_packed", _bytes(N, 56)), "weights.group_size", ["K = 112", "32"]),
    (MX6, _with("weight_packed", _bytes(N, 74)), "weight_packed", ["74 bytes", "multiple of 3"]),
    (MX6, _with("weight_packed", _bytes(N, 75)), "weights.group_size", ["K = 100", "32"]),
    (MX8, _with("weight", torch.zeros(N, 80).to(torch.float8_e4m3fn)), "weights.group_size", ["K = 80", "32"]),
    (MX8, _with("weight", torch.zeros(N, K, dtype=torch.bfloat16)), "weight", ["BF16", "F8_E4M3"]),
    (MX8, _with("weight", torch.zeros(N, K).to(torch.float8_e5m2)), "weight", ["F8_E5M2", "F8_E4M3"]),
    # scales
    (NV4, _with("weight_packed", _bytes(N, 64)), "weight_scale", ["[24, 6]", "[24, 8]"]),
    (MX4, _with("weight_packed", _bytes(N, 64)), "weight_scale", ["[24, 3]", "[24, 4]"]),
    (MX8, _with("weight_scale", _bytes(N + 1, 3)), "weight_scale", ["[25, 3]", "[24, 3]"]),
    (NV4, _with("weight_scale", torch.ones(N, 6, dtype=torch.bfloat16)), "weight_scale", ["BF16", "F8_E4M3"]),
    (MX4, _with("weight_scale", torch.ones(N, 3, dtype=torch.bfloat16)), "weight_scale", ["BF16", "U8"]),
    (MX6, _with("weight_scale", torch.ones(N, 3).to(torch.float8_e4m3fn)), "weight_scale", ["F8_E4M3", "U8"]),
    (MX8, _with("weight_scale", torch.ones(N, 3)), "weight_scale", ["F32", "F8_E8M0"]),
    (PLAIN8, _with("weight_scale", torch.ones(N, 3).to(torch.float8_e4m3fn)), "weight_scale", ["F8_E4M3", "BF16"]),
    (NV4, _with("weight_global_scale", torch.ones(1, dtype=torch.bfloat16)), "weight_global_scale", ["BF16", "F32"]),
    (NV4, _with("weight_global_scale", torch.ones(2)), "weight_global_scale", ["[2]", "[1]"]),
    (NV44, _with("input_global_scale", torch.ones(1, 1)), "input_global_scale", ["[1, 1]", "[1]"]),
    (MX4, _with("bias", torch.zeros(N - 1)), "bias", ["[23]", "[24]"]),
]  # fmt: skip


@pytest.mark.parametrize(("scheme", "change", "field", "words"), BROKEN)
def test_headers_that_contradict_the_scheme(
    scheme: Scheme, change: Callable[[Tensors], Any], field: str, words: list[str]
) -> None:
    tensors = layer(scheme)
    change(tensors)
    with pytest.raises(CheckpointError) as caught:
        scheme.check(LAYER, described(tensors))
    text = str(caught.value)
    assert caught.value.layer == LAYER and caught.value.field == field
    assert text.startswith(f"{LAYER}: ") and "\n" not in text
    assert [word for word in words if word not in text] == []


def e4m3(value: float) -> torch.Tensor:
    return torch.tensor(value).to(torch.float8_e4m3fn)


#: (scheme, tensor, values written over its last entries, words in the message)
UNUSABLE = [
    *((NV44, tensor, torch.tensor([value]), [word])
      for tensor in ("weight_global_scale", "input_global_scale")
      for value, word in ((NAN, "NaN"), (INF, "infinite"), (-INF, "infinite"), (0.0, "zero"), (-2.0, "negative"))),
    (NV4, "weight_scale", e4m3(NAN), ["1 unusable", "NaN", "[23, 5]"]),
    (NV4, "weight_scale", e4m3(-2.0), ["negative"]),
    *((scheme, "weight_scale", torch.tensor(255, dtype=torch.uint8), ["1 NaN", "[23, 2]", "0..254"])
      for scheme in (MX4, MX6, MX8, PLAIN8)),
]  # fmt: skip


@pytest.mark.parametrize(("scheme", "tensor", "value", "words"), UNUSABLE)
def test_values_that_cannot_be_meant(
    numerics_of: Any, scheme: Scheme, tensor: str, value: torch.Tensor, words: list[str]
) -> None:
    tensors = layer(scheme)
    flat = tensors[tensor].clone().view(-1)
    flat[-1] = value
    tensors[tensor] = flat.view(tensors[tensor].shape)
    scheme.check(LAYER, described(tensors))
    with pytest.raises(CheckpointError) as caught:
        numerics_of(scheme).operands(tensors, LayerShape(N, K), LAYER)
    text = str(caught.value)
    assert caught.value.layer == LAYER and caught.value.field == tensor and tensor in text
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize("number", [NAN, INF, 0.0, -1.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_plain_scales_are_held_to_what_plain_scales_are(numerics_of: Any, number: float, dtype: torch.dtype) -> None:
    tensors = layer(PLAIN8) | {"weight_scale": torch.ones(N, 3, dtype=dtype)}
    PLAIN8.check(LAYER, described(tensors))
    tensors["weight_scale"][3, 1] = number
    with pytest.raises(CheckpointError, match=f"{LAYER}.*weight_scale.*1 unusable"):
        numerics_of(PLAIN8).operands(tensors, LayerShape(N, K), LAYER)


@pytest.mark.parametrize("number", [NAN, -1.0])
def test_nvfp4_scales_kept_as_bytes_are_looked_at_too(numerics_of: Any, number: float) -> None:
    tensors = layer(NV4)
    tensors["weight_scale"] = tensors["weight_scale"].view(torch.uint8).clone()
    tensors["weight_scale"][2, 2] = e4m3(number).view(torch.uint8)
    with pytest.raises(CheckpointError, match=f"{LAYER}.*weight_scale.*1 unusable"):
        numerics_of(NV4).operands(tensors, LayerShape(N, K), LAYER)


def test_a_group_scale_may_underflow_but_not_all_of_them(numerics_of: Any) -> None:
    tensors = layer(NV4)
    zeros = torch.zeros(N, 6).to(torch.float8_e4m3fn)
    some = zeros.clone()
    some[0, 1] = 2.0
    numerics = numerics_of(NV4)
    weight = numerics.dequantize(numerics.operands(tensors | {"weight_scale": some}, LayerShape(N, K), LAYER))
    assert bool(weight[0, 16:32].any()) and not bool(weight[1:].any())
    with pytest.raises(CheckpointError, match=f"{LAYER}.*weight_scale.*nothing but zeros"):
        numerics.operands(tensors | {"weight_scale": zeros}, LayerShape(N, K), LAYER)


def test_exponent_zero_is_a_scale_like_any_other(numerics_of: Any) -> None:
    """compressed-tensors writes it for a group of zeros."""
    numerics = numerics_of(MX4)
    tensors = layer(MX4) | {"weight_scale": _bytes(N, 3)}
    weight = numerics.dequantize(numerics.operands(tensors, LayerShape(N, K), LAYER))
    assert float(weight[0, 0]) == 0.5 * 2.0**-127 and float(weight[0, 1]) == 2.0**-127


def test_nan_codes_of_mxfp8_are_nan_weights(numerics_of: Any) -> None:
    tensors = layer(MX8)
    tensors["weight"].view(torch.uint8)[1, 2] = 0x7F
    weight = numerics_of(MX8).dequantize(numerics_of(MX8).operands(tensors, LayerShape(N, K), LAYER))
    assert torch.isnan(weight).nonzero().tolist() == [[1, 2]]


@pytest.mark.parametrize("scheme", [NV4, MX4, MX6, MX8], ids=lambda scheme: scheme.name)
def test_tensors_of_another_shape_than_their_headers(numerics_of: Any, scheme: Scheme) -> None:
    """What is handed to the numerics without a check of the headers is not taken for something else."""
    codes = "weight" if scheme is MX8 else "weight_packed"
    for tensor in (codes, "weight_scale"):
        tensors = layer(scheme)
        tensors[tensor] = tensors[tensor][: N // 2]
        with pytest.raises(CheckpointError) as caught:
            numerics_of(scheme).operands(tensors, LayerShape(N, K), LAYER)
        assert caught.value.field == tensor


@pytest.mark.parametrize(
    ("scheme", "k", "degree", "fits"),
    [(NV4, 96, 2, True), (NV4, 96, 4, False), (NV4, 96, 6, True), (MX4, 96, 2, False), (MX4, 128, 4, True),
     (MX6, 96, 3, True), (MX6, 128, 8, False), (MX8, 64, 2, True), (MX8, 96, 2, False)],
)  # fmt: skip
def test_inputs_are_split_between_groups(scheme: Scheme, k: int, degree: int, fits: bool) -> None:
    if fits:
        assert shard(LAYER, scheme, LayerShape(N, k), degree) == LayerShape(N, k // degree)
        return
    with pytest.raises(CheckpointError, match=f"{LAYER}.*cannot be split over {degree} ranks"):
        shard(LAYER, scheme, LayerShape(N, k), degree)


def test_explaining_needs_no_torch() -> None:
    script = "import sys; from quantdispatch.schemes import microscaling, nvfp4, mx; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_inputs_are_never_static() -> None:
    """mx inputs store nothing, nvfp4 inputs their global scale alone."""
    dynamic = QuantArgs(num_bits=4, type="float", strategy="group", group_size=32, dynamic=True)
    assert _scheme(W4A4MxFp4, "mxfp4-pack-quantized", mx(4), dynamic).tensor_names() == MX4.tensor_names()
    assert NV44.tensor_names()[0] - NV4.tensor_names()[0] == {"input_global_scale"}
