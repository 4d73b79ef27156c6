"""The reference forward against the whole computation in float64, written out from docs/schemes.md."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.facts import LayerFacts
from quantdispatch.schemes.reference import linear as reference_linear

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
#: error over the largest output: half a unit in the last place of the result, and fp32 sums for fp32
TOLERANCE = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2e-6}
N, K = 24, 96
OUTPUT_STEP, OUTPUT_ZERO = 0.5, -9


def quantized(x: torch.Tensor, args: QuantArgs | None, scale: Any, zero_point: Any) -> torch.Tensor:
    """x as the layer sees it, float64; only the quotients are formed in fp32, as the formula says."""
    if args is None:
        return x.double()
    wide = x.float()
    if args.type == "float":
        size = args.group_size if args.strategy == "group" else K
        rows = wide.reshape(-1, K // size, size) if args.strategy != "tensor" else wide.reshape(1, 1, -1)
        s = scale.float() if not args.dynamic else (rows.abs().amax(-1, keepdim=True) / 448).clamp(min=1e-38)
        q = (rows / s).clamp(-448, 448).to(torch.float8_e4m3fn)
        return (q.double() * s.double()).reshape(x.shape)
    rows = wide.reshape(1, -1) if args.strategy == "tensor" else wide.reshape(-1, args.group_size or K)
    low, high = (-128, 127) if args.num_bits == 8 else (-8, 7)
    if not args.dynamic:
        s, z = scale.float(), torch.zeros(1) if args.symmetric else zero_point.float()
    elif args.symmetric:
        s, z = (rows.abs().amax(-1, keepdim=True) / high).clamp(min=1e-38), torch.zeros(1)
    else:
        top, bottom = rows.amax(-1, keepdim=True).clamp(min=0), rows.amin(-1, keepdim=True).clamp(max=0)
        s = ((top - bottom) / (high - low)).clamp(min=1e-38)
        z = (low - bottom / s).round().clamp(low, high)
    q = (rows / s + z).round().clamp(low, high)
    return ((q.double() - z.double()) * s.double()).reshape(x.shape)


def int_args(bits: int, strategy: str, symmetric: bool) -> QuantArgs:
    return QuantArgs(
        num_bits=bits,
        strategy=strategy,
        symmetric=symmetric,
        group_size=16 if strategy == "group" else None,
        block_structure=[16, 40] if strategy == "block" else None,
    )


def int_inputs(bits: int) -> list[QuantArgs]:
    ways: list[dict[str, Any]] = [
        {"strategy": "token", "dynamic": True},
        {"strategy": "tensor", "dynamic": True},
        {"strategy": "group", "group_size": 32, "dynamic": True},
        {"strategy": "tensor"},
    ]
    return [QuantArgs(num_bits=bits, symmetric=y, **way) for way in ways for y in (True, False)]


INT_INPUTS = [None, *int_inputs(8), *int_inputs(4)]
FP8_INPUTS = [
    None,
    QuantArgs(type="float", strategy="token", dynamic=True),
    QuantArgs(type="float", strategy="tensor", dynamic=True),
    QuantArgs(type="float", strategy="tensor"),
    QuantArgs(type="float", strategy="group", group_size=32, dynamic=True),
]
INT_WEIGHTS = [
    int_args(b, s, y)
    for b, s in ((8, "tensor"), (8, "channel"), (4, "group"), (3, "group"), (1, "channel"), (4, "block"))
    for y in (True, False)
]
#: what int4 weights meet in w4a8_fp8
W4A8 = [args for args in INT_WEIGHTS if args.num_bits == 4]
FP8_WEIGHTS = [
    QuantArgs(type="float", strategy="tensor"),
    QuantArgs(type="float", strategy="channel"),
    QuantArgs(type="float", strategy="block", block_structure=[16, 40]),
    QuantArgs(type="float", strategy="group", group_size=24),
]
PAIRS = [(w, i) for w in INT_WEIGHTS for i in INT_INPUTS] + [(w, i) for w in FP8_WEIGHTS for i in FP8_INPUTS]
PAIRS += [(w, i) for w in W4A8 for i in FP8_INPUTS[1:]]


def describe(args: QuantArgs | None) -> str:
    return "none" if args is None else args.describe()


@pytest.fixture
def layer(headers: Any, scheme_of: Any, numerics_of: Any, written: Any) -> Any:
    def build(
        weights: QuantArgs, inputs: QuantArgs | None, dtype: torch.dtype, outputs: QuantArgs | None = None
    ) -> Any:
        format = "float-quantized" if weights.type == "float" else "int-quantized"
        tensors = written(format, weights, N, K, dtype)
        if inputs is not None and not inputs.dynamic:
            tensors["input_scale"] = torch.tensor(
                [{8: 0.03, 4: 0.5}[inputs.num_bits] if inputs.type == "int" else 0.01]
            )
            if not inputs.symmetric:
                tensors["input_zero_point"] = torch.tensor([-11 if inputs.num_bits == 8 else -3], dtype=torch.int8)
        if outputs is not None:
            tensors["output_scale"] = torch.tensor([OUTPUT_STEP])
            if not outputs.symmetric:
                tensors["output_zero_point"] = torch.tensor([OUTPUT_ZERO], dtype=torch.int8)
        tensors["bias"] = torch.randn(N, generator=torch.Generator().manual_seed(5)).to(dtype)
        scheme = scheme_of(format, weights, inputs, outputs=outputs)
        shape = scheme.check("layer", headers(tensors))
        # as a backend builds it: from a kernel spec, which has no format
        numerics = type(numerics_of(scheme))(LayerFacts("linear", None, weights, inputs, outputs))
        return numerics, numerics_of(scheme).operands(tensors, shape, "layer")

    return build


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("weights", "inputs"), PAIRS, ids=describe)
def test_forward_is_the_float64_answer(layer: Any, weights: QuantArgs, inputs: Any, dtype: torch.dtype) -> None:
    numerics, operands = layer(weights, inputs, dtype)
    x = (torch.randn(2, 5, K, generator=torch.Generator().manual_seed(3)) * 2 + 0.3).to(dtype)
    x[0, 0] = 0
    seen = quantized(x, inputs, operands.input_scale, operands.input_zero_point)
    exact = seen @ numerics.dequantize(operands, torch.float64).T + operands.bias.double()
    y = numerics.forward(x, operands)
    assert y.dtype == dtype and y.shape == (2, 5, N)
    allowed = TOLERANCE[dtype] * exact.abs().amax() * 1.01

    def close(got: torch.Tensor, expected: torch.Tensor) -> bool:
        return bool(((got.double() - expected).abs() <= allowed).all())

    assert close(y, exact)
    # x need not be contiguous, nor have any rows; a token's answer does not depend on its neighbours
    assert close(numerics.forward(x.transpose(0, 1), operands), exact.transpose(0, 1))
    assert numerics.forward(x[:0], operands).shape == (0, 5, N)
    if inputs is None or inputs.strategy != "tensor" or not inputs.dynamic:
        assert close(numerics.forward(x[1, 3], operands), exact[1, 3])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("inputs", [i for i in int_inputs(8) if not i.dynamic], ids=describe)
@pytest.mark.parametrize("weights", INT_WEIGHTS, ids=describe)
def test_outputs_are_quantized_after_the_bias(
    layer: Any, weights: QuantArgs, inputs: QuantArgs, symmetric: bool, dtype: torch.dtype
) -> None:
    numerics, operands = layer(weights, inputs, dtype, QuantArgs(strategy="tensor", symmetric=symmetric))
    x = (torch.randn(2, 5, K, generator=torch.Generator().manual_seed(3)) * 20 + 0.3).to(dtype)
    seen = quantized(x, inputs, operands.input_scale, operands.input_zero_point)
    plain = seen @ numerics.dequantize(operands, torch.float64).T + operands.bias.double()
    zero = 0 if symmetric else OUTPUT_ZERO
    y = numerics.forward(x, operands)
    assert y.dtype == dtype and y.shape == (2, 5, N)
    # a step of a half and up to 8 bits of codes: every value is exact in each of the dtypes
    codes = y.double() / OUTPUT_STEP + zero
    assert torch.equal(codes, codes.round()) and codes.min() >= -128 and codes.max() <= 127
    steps = (plain / OUTPUT_STEP + zero).clamp(-128, 127)
    assert (codes - steps).abs().max() <= 0.5 + 1e-3
    clear = (steps - steps.floor() - 0.5).abs() > 1e-3
    assert torch.equal(codes[clear], steps[clear].round()) and clear.float().mean() > 0.9


@pytest.mark.parametrize("weights", [*INT_WEIGHTS, *FP8_WEIGHTS], ids=describe)
def test_the_chunks_make_up_the_whole(layer: Any, monkeypatch: pytest.MonkeyPatch, weights: QuantArgs) -> None:
    numerics, operands = layer(weights, None, torch.float32)
    x = torch.randn(3, K)
    whole = numerics.forward(x, operands)
    monkeypatch.setattr(reference_linear, "CHUNK", 5 * K)
    ranges = list(reference_linear.chunks(operands, weights))
    assert len(ranges) > 1 and [r.start for r in ranges[1:]] == [r.stop for r in ranges[:-1]] and ranges[-1].stop == N
    torch.testing.assert_close(numerics.forward(x, operands), whole, rtol=1e-5, atol=1e-5)


def test_nan_weights_reach_the_output(layer: Any) -> None:
    numerics, operands = layer(FP8_WEIGHTS[0], FP8_INPUTS[1], torch.bfloat16)
    operands.codes = operands.codes.clone()
    operands.codes.view(torch.uint8)[4, 7] = 0x7F
    y = numerics.forward(torch.ones(2, K, dtype=torch.bfloat16), operands)
    assert torch.isnan(y).all(0).nonzero().flatten().tolist() == [4]


def test_float64_activations_get_a_float64_answer(layer: Any) -> None:
    numerics, operands = layer(INT_WEIGHTS[4], None, torch.bfloat16)
    x = torch.randn(3, K, dtype=torch.float64)
    exact = x @ numerics.dequantize(operands, torch.float64).T + operands.bias.double()
    torch.testing.assert_close(numerics.forward(x, operands), exact, rtol=1e-12, atol=1e-12)


def test_dense(scheme_of: Any, numerics_of: Any, headers: Any) -> None:
    scheme = scheme_of(None, None)
    for dtype in DTYPES:
        tensors = {"weight": torch.randn(N, K).to(dtype), "bias": torch.randn(N).to(dtype)}
        operands = numerics_of(scheme).operands(tensors, scheme.check("layer", headers(tensors)), "layer")
        x = torch.randn(3, K).to(dtype)
        exact = x.double() @ tensors["weight"].double().T + tensors["bias"].double()
        y = numerics_of(scheme).forward(x, operands)
        assert y.dtype == dtype and ((y.double() - exact).abs() <= TOLERANCE[dtype] * exact.abs().amax() * 1.01).all()


def test_columns_through_a_g_idx(layer: Any) -> None:
    """A permuted index with permuted columns is the same layer on permuted inputs."""
    numerics, operands = layer(INT_WEIGHTS[5], None, torch.float32)
    x, order = torch.randn(3, K), torch.randperm(K)
    plain = numerics.forward(x, operands)
    operands.codes = operands.codes[:, order].contiguous()
    operands.g_idx = (order // 16).to(torch.int32)
    torch.testing.assert_close(numerics.forward(x[:, order], operands), plain, rtol=1e-5, atol=1e-5)
