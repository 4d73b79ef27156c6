"""nvfp4 and the mx formats: what compressed-tensors writes is read bit for bit, computed as it fake-quantizes, and
written back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from quantdispatch.engines.tensors import described
from quantdispatch.numerics.rows import select_rows
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.facts import LayerFacts
from quantdispatch.registry.registry import get_registry
from quantdispatch.registry.scheme import LayerShape, Scheme

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
NV: dict[str, Any] = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}


def mx(bits: int, dynamic: bool = False, scale_dtype: str | None = "uint8") -> QuantArgs:
    return QuantArgs(
        num_bits=bits, type="float", strategy="group", group_size=32, dynamic=dynamic, scale_dtype=scale_dtype
    )


def fp8(**fields: Any) -> QuantArgs:
    return QuantArgs(**{"num_bits": 8, "type": "float", "dynamic": True, **fields})


NVFP4 = QuantArgs(**NV, scale_dtype="float8_e4m3fn")
WEIGHTS = {
    "nvfp4-pack-quantized": NVFP4,
    "mxfp4-pack-quantized": mx(4),
    "mxfp6-pack-quantized": mx(6),
    "mxfp8-quantized": mx(8),
}
#: scheme, format, inputs, tolerance of the product beside the rounding to x's dtype
SCHEMES: list[tuple[str, str, QuantArgs | None]] = [
    ("w4a16_nvfp4", "nvfp4-pack-quantized", None),
    ("w4a4_nvfp4", "nvfp4-pack-quantized", QuantArgs(**NV, dynamic="local", scale_dtype="float8_e4m3fn")),
    ("w4a16_mxfp4", "mxfp4-pack-quantized", None),
    ("w4a4_mxfp4", "mxfp4-pack-quantized", mx(4, True)),
    ("w4a8_mxfp4", "mxfp4-pack-quantized", fp8(strategy="token")),
    ("w4a8_mxfp4", "mxfp4-pack-quantized", fp8(strategy="group", group_size=48)),
    ("w4a8_mxfp4", "mxfp4-pack-quantized", mx(8, True)),
    ("w6a16_mxfp6", "mxfp6-pack-quantized", None),
    ("w6a8_mxfp6", "mxfp6-pack-quantized", mx(8, True)),
    ("w8a16_mxfp8", "mxfp8-quantized", None),
    ("w8a8_mxfp8", "mxfp8-quantized", mx(8, True)),
]
EVERY_FORMAT = pytest.mark.parametrize("format", WEIGHTS)
EVERY_SCHEME = pytest.mark.parametrize(
    ("name", "format", "inputs"), SCHEMES, ids=[f"{n}-{'none' if i is None else i.strategy}" for n, _, i in SCHEMES]
)


def scheme_for(format: str, inputs: QuantArgs | None = None, kind: str = "linear", **more: Any) -> Scheme:
    """The scheme that the built-in rules give these args."""
    layer = LayerFacts(kind, format, more.get("weights", WEIGHTS.get(format)), inputs)
    rule = get_registry().resolve(layer).rule
    assert rule is not None, layer
    scheme: Scheme = get_registry().scheme_class(rule)(layer)
    return scheme


def their(format: str, weights: QuantArgs) -> tuple[Any, Any]:
    pytest.importorskip("compressed_tensors", reason="the layers of this test are written by compressed-tensors")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    try:
        compressor = BaseCompressor.get_value_from_registry(format)
    except KeyError:
        pytest.skip(f"this compressed-tensors does not write {format}")
    return compressor, QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights.to_json()))


def write(format: str, n: int, k: int, dtype: torch.dtype, seed: int = 0) -> dict[str, torch.Tensor]:
    """A random layer, scaled and compressed by the installed compressed-tensors."""
    args = WEIGHTS[format]
    compressor, scheme = their(format, args)
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    weight = (torch.randn(n, k, generator=torch.Generator().manual_seed(seed)) * 0.3).to(dtype)
    weight[0, : args.group_size] = 0.0
    grouped = weight.unflatten(-1, (-1, args.group_size))
    overall = generate_gparam(weight.amin(), weight.amax()) if args.strategy == "tensor_group" else None
    scale, zero_point = calculate_qparams(grouped.amin(-1), grouped.amax(-1), scheme.weights, global_scale=overall)
    state = {"weight": weight, "weight_scale": scale.to(dtype), "weight_zero_point": zero_point}
    if overall is not None:
        state["weight_global_scale"] = overall
    tensors: dict[str, torch.Tensor] = compressor.compress(state, scheme)
    return tensors


def decompressed(format: str, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    compressor, scheme = their(format, WEIGHTS[format])
    weight: torch.Tensor = compressor.decompress(dict(tensors), scheme)["weight"]
    return weight


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def same(ours: torch.Tensor, expected: torch.Tensor) -> None:
    assert ours.dtype == expected.dtype and ours.shape == expected.shape
    assert torch.equal(bits_of(ours), bits_of(expected))


@EVERY_FORMAT
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), [(2, 32), (9, 64), (40, 160)])
def test_what_they_write_we_read_and_write_back(
    numerics_of: Any, format: str, dtype: torch.dtype, n: int, k: int
) -> None:
    tensors = write(format, n, k, dtype, seed=n * k)
    scheme = scheme_for(format)
    assert scheme.tensor_names() == (frozenset(tensors), frozenset())
    shape = scheme.check("layer", described(tensors))
    assert shape == LayerShape(n, k)
    numerics = numerics_of(scheme)
    operands = numerics.operands(tensors, shape, "layer")
    expected = decompressed(format, tensors)
    same(numerics.dequantize(operands), expected)
    assert float(expected.float().std()) > 0.05
    # the forward half needs the args only: backends have no format
    same(type(numerics)(LayerFacts("linear", None, WEIGHTS[format])).dequantize(operands), expected)
    stored = numerics.stored(operands, shape)
    assert stored.keys() == tensors.keys()
    for name, tensor in tensors.items():
        same(stored[name], tensor)


@EVERY_FORMAT
def test_every_code_under_every_scale(numerics_of: Any, format: str) -> None:
    """All bytes of codes, all finite scales, overflow and denormals included."""
    args = WEIGHTS[format]
    size = args.group_size or 0
    n, groups = 256, 12
    k = groups * size
    width = k * args.num_bits // 8
    codes = ((torch.arange(n).unsqueeze(1) * 7 + torch.arange(width) * 31) % 256).to(torch.uint8)
    scales = ((torch.arange(n).unsqueeze(1) + torch.arange(groups) * 85) % 256).to(torch.uint8)
    if format.startswith("nvfp4"):
        scales = (scales & 0x7F).clamp(max=0x7E)  # neither negative nor NaN
        tensors = {
            "weight_packed": codes,
            "weight_scale": scales.view(torch.float8_e4m3fn),
            "weight_global_scale": torch.tensor([1234.567]),
        }
    else:
        tensors = {"weight_packed": codes, "weight_scale": scales.clamp(max=254)}
        if args.num_bits == 8:
            tensors["weight"] = tensors.pop("weight_packed").view(torch.float8_e4m3fn)
    scheme = scheme_for(format)
    shape = scheme.check("layer", described(tensors))
    numerics = numerics_of(scheme)
    ours = numerics.dequantize(numerics.operands(tensors, shape, "layer"))
    expected = decompressed(format, tensors)
    assert torch.equal(ours.isnan(), expected.isnan())
    numbers = ~expected.isnan()
    same(ours[numbers], expected[numbers])


@EVERY_SCHEME
def test_args_reach_their_scheme(name: str, format: str, inputs: QuantArgs | None) -> None:
    for kind in ("linear", "lm_head", "moe", *(["embedding"] if inputs is None else [])):
        scheme = scheme_for(format, inputs, kind)
        assert scheme.name == name
        spec = scheme.kernel_spec(LayerShape(48, 96), "bfloat16", tensors=frozenset({"bias"}))
        assert (spec.n, spec.k, spec.group_size, spec.bias) == (48, 96, WEIGHTS[format].group_size, True)
        assert (spec.op, spec.kind) == ("embedding" if kind == "embedding" else "linear", kind)
        assert spec.reference == scheme.numerics
        assert scheme.kernel_spec(None, "bfloat16").group_size == WEIGHTS[format].group_size


def fake_quantized(x: torch.Tensor, inputs: QuantArgs, overall: torch.Tensor | None) -> torch.Tensor:
    """compressed-tensors' own, or for fp8 with float scales the formula of docs/schemes.md."""
    if inputs.group_size == 32 or inputs.strategy == "tensor_group":
        from compressed_tensors.quantization import QuantizationArgs
        from compressed_tensors.quantization.lifecycle.forward import fake_quantize
        from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp

        args = QuantizationArgs(**inputs.to_json())
        scale, zero = compute_dynamic_scales_and_zp(x, args, torch.nn.Module(), global_scale=overall)
        result: torch.Tensor = fake_quantize(x, scale, zero, args, global_scale=overall)
        return result
    rows = x.float().reshape(-1, inputs.group_size or x.shape[-1])
    scale = rows.abs().amax(-1, keepdim=True) / 448
    return ((rows / scale).to(torch.float8_e4m3fn).double() * scale.double()).reshape(x.shape)


@EVERY_SCHEME
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
def test_the_forward_is_their_fake_quantization(
    numerics_of: Any,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    format: str,
    inputs: Any,
    dtype: torch.dtype,
    bias: bool,
) -> None:
    """Against the product in float64 of their decompressed weight and their fake-quantized inputs."""
    n, k = 24, 96
    monkeypatch.setattr("quantdispatch.schemes.reference.linear.CHUNK", k * 7)
    tensors = write(format, n, k, torch.bfloat16, seed=3)
    generator = torch.Generator().manual_seed(4)
    x = (torch.randn(2, 5, k, generator=generator) * torch.rand(2, 5, 1, generator=generator) * 9).to(dtype)
    overall = None
    if name == "w4a4_nvfp4":
        overall = tensors["input_global_scale"] = torch.tensor([448 * 6 / 20.0])
    if bias:
        tensors["bias"] = torch.randn(n, generator=generator)
    scheme = scheme_for(format, inputs)
    numerics = numerics_of(scheme)
    operands = numerics.operands(tensors, LayerShape(n, k), "layer")
    y = numerics.forward(x, operands)
    assert y.dtype == dtype and y.shape == (2, 5, n)
    seen = x if inputs is None else fake_quantized(x, inputs, overall)
    weight = numerics.dequantize(operands, torch.float64)
    torch.testing.assert_close(weight, decompressed(format, tensors).double(), rtol=2**-8, atol=0)
    truth = F.linear(seen.double(), weight, tensors["bias"].double() if bias else None)
    limit = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2e-6}[dtype]
    assert float((y.double() - truth).abs().max() / truth.abs().max()) < limit


@EVERY_FORMAT
def test_single_rows(numerics_of: Any, format: str) -> None:
    """An embedding dequantizes the rows that it looks up."""
    tensors = write(format, 50, 64, torch.bfloat16)
    numerics = numerics_of(scheme_for(format, kind="embedding"))
    operands = numerics.operands(tensors, LayerShape(50, 64), "layer")
    rows = torch.tensor([3, 49, 0, 3])
    same(numerics.dequantize(select_rows(operands, WEIGHTS[format], rows)), decompressed(format, tensors)[rows])


def test_inputs_that_leave_their_scales_open(numerics_of: Any) -> None:
    """fp8 in groups of 32 without a scale dtype: powers of two beside fp6 and fp8 weights, floats beside fp4."""
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(5))
    for format, same_as in (("mxfp6-pack-quantized", mx(8, True)), ("mxfp8-quantized", mx(8, True))):
        tensors = write(format, 8, 64, torch.bfloat16)
        open_, marked = (numerics_of(scheme_for(format, inputs)) for inputs in (mx(8, True, scale_dtype=None), same_as))
        operands = open_.operands(tensors, LayerShape(8, 64), "layer")
        assert torch.equal(open_.forward(x, operands), marked.forward(x, operands))
    tensors = write("mxfp4-pack-quantized", 8, 64, torch.bfloat16)
    plain = scheme_for("mxfp4-pack-quantized", mx(8, True, scale_dtype=None))
    assert plain.name == "w4a8_mxfp4"
    numerics = numerics_of(plain)
    operands = numerics.operands(tensors, LayerShape(8, 64), "layer")
    rows = x.reshape(-1, 32)
    scale = rows.abs().amax(-1, keepdim=True) / 448
    seen = ((rows / scale).to(torch.float8_e4m3fn).float() * scale).reshape(x.shape)
    assert torch.equal(numerics.quantized_inputs(x, operands), seen)


@pytest.mark.parametrize("format", ["float-quantized", "naive-quantized"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_plain_formats_keep_powers_of_two_as_floats(numerics_of: Any, format: str, dtype: torch.dtype) -> None:
    compressor, theirs = their(format, mx(8))
    exponent = torch.randint(-9, 9, (6, 2), generator=torch.Generator().manual_seed(1))
    state = {"weight": torch.randn(6, 64).to(dtype), "weight_scale": torch.exp2(exponent.float()).to(dtype)}
    tensors = compressor.compress(state, theirs)
    scheme = scheme_for(format, weights=mx(8))
    assert scheme.name == "w8a16_mxfp8"
    shape = scheme.check("layer", described(tensors))
    numerics = numerics_of(scheme)
    operands = numerics.operands(tensors, shape, "layer")
    same(numerics.dequantize(operands), compressor.decompress(dict(tensors), theirs)["weight"])
    for name, tensor in tensors.items():
        same(numerics.stored(operands, shape)[name], tensor)
    # a byte says the same
    exponents = {**tensors, "weight_scale": (exponent + 127).to(torch.uint8)}
    scheme.check("layer", described(exponents))
    weight = numerics.dequantize(numerics.operands(exponents, shape, "layer"))
    assert torch.equal(weight.float(), numerics.dequantize(operands).float())


def _as(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor.view(dtype)


@pytest.mark.parametrize(
    ("format", "tensor", "change"),
    [
        ("nvfp4-pack-quantized", "weight_scale", _as(torch.uint8)),
        ("nvfp4-pack-quantized", "weight_global_scale", lambda tensor: tensor.reshape(())),
        *((format, "weight_scale", _as(torch.float8_e8m0fnu)) for format in list(WEIGHTS)[1:]),
    ],
)
def test_the_same_bytes_under_another_dtype(
    numerics_of: Any, format: str, tensor: str, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    tensors = write(format, 8, 64, torch.bfloat16)
    scheme = scheme_for(format)
    spelled = {**tensors, tensor: change(tensors[tensor])}
    shape = scheme.check("layer", described(spelled))
    numerics = numerics_of(scheme)
    operands = numerics.operands(spelled, shape, "layer")
    same(numerics.dequantize(operands), decompressed(format, tensors))
    # what is saved is spelled as compressed-tensors spells it
    for name, stored in numerics.stored(operands, shape).items():
        same(stored, tensors[name])
