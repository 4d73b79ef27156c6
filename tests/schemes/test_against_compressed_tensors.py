"""What compressed-tensors writes, we read: its decompressed weight bit for bit, and its tensors back again."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import compressed_tensors
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.facts import LayerFacts

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
#: of the writer at hand; it may lie on the path without having been installed
WRITER = tuple(
    int(part) for part in str(getattr(compressed_tensors, "__version__", version("compressed-tensors"))).split(".")[:2]
)
INT_FORMATS = ["pack-quantized", "int-quantized", "naive-quantized"]


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as bytes, so that NaN equals itself and -0 differs from 0."""
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def check_layer(fx: Any, format: str, weights: QuantArgs, n: int, k: int, dtype: torch.dtype) -> None:
    headers, scheme_of, numerics_of, written, decompressed = fx
    tensors = written(format, weights, n, k, dtype, seed=n * k)
    scheme = scheme_of(format, weights, version=".".join(map(str, WRITER)))
    shape = scheme.check("layer", headers(tensors))
    assert (shape.n, shape.k) == (n, k)
    required, optional = scheme.tensor_names()
    assert required <= set(tensors) <= required | optional

    numerics = numerics_of(scheme)
    operands = numerics.operands(tensors, shape, "layer")
    expected = decompressed(format, weights, tensors)
    weight = numerics.dequantize(operands)
    assert weight.dtype == expected.dtype == dtype and weight.shape == (n, k)
    assert torch.equal(bits_of(weight), bits_of(expected))

    # The forward half needs the args only: backends have no format.
    formatless = type(numerics)(LayerFacts("linear", None, weights))
    assert torch.equal(bits_of(formatless.dequantize(operands)), bits_of(expected))

    stored = numerics.stored(operands, shape)
    assert set(stored) == set(tensors)
    # We write densely. Older writers pad 3, 5, 6 and 7 bits, also where both layouts are equally wide.
    padded = WRITER < (0, 18) and format == "pack-quantized" and weights.num_bits in (3, 5, 6, 7)
    if shape.packing != "padded" and not padded:
        for name, tensor in tensors.items():
            assert stored[name].dtype == tensor.dtype and stored[name].shape == tensor.shape, name
            assert torch.equal(bits_of(stored[name]), bits_of(tensor)), name


@pytest.fixture
def fx(headers: Any, scheme_of: Any, numerics_of: Any, written: Any, decompressed: Any) -> Any:
    return headers, scheme_of, numerics_of, written, decompressed


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("strategy", ["tensor", "channel", "group", "block"])
@pytest.mark.parametrize("format", INT_FORMATS)
@pytest.mark.parametrize("bits", range(1, 9))
def test_integer_weights(fx: Any, bits: int, format: str, strategy: str, symmetric: bool) -> None:
    if WRITER < (0, 18) and format == "pack-quantized" and bits == 1:
        pytest.skip("compressed-tensors packs 1 bit from 0.18 on")
    if WRITER < (0, 19) and strategy == "block":
        pytest.skip("older compressed-tensors cannot decompress partial blocks")
    weights = QuantArgs(
        num_bits=bits,
        strategy=strategy,
        symmetric=symmetric,
        group_size=16 if strategy == "group" else None,
        block_structure=[16, 32] if strategy == "block" else None,
    )
    for dtype, (n, k) in zip(DTYPES, [(9, 64), (40, 48), (33, 96)], strict=True):
        check_layer(fx, format, weights, n, k, dtype)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1 if WRITER >= (0, 18) else 2, 8),
    st.booleans(),
    st.integers(1, 50),
    st.integers(1, 9),
    st.integers(1, 21),
    st.sampled_from(DTYPES),
    st.booleans(),
)
def test_any_group_that_divides_k(
    fx: Any, bits: int, symmetric: bool, n: int, groups: int, size: int, dtype: torch.dtype, channel: bool
) -> None:
    weights = QuantArgs(
        num_bits=bits,
        symmetric=symmetric,
        strategy="channel" if channel else "group",
        group_size=None if channel else size,
    )
    # compressed-tensors 0.20.1 fails on its own zero points there: one word down, transposed, viewed as bytes
    assume(symmetric or bits != 4 or n > 8)
    check_layer(fx, "pack-quantized", weights, n, groups * size, dtype)


@pytest.mark.parametrize("format", ["float-quantized", "naive-quantized"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("size", "n", "k"), [(16, 33, 64), (7, 5, 21), (128, 3, 128), (1, 2, 3)])
def test_fp8_groups(fx: Any, format: str, size: int, n: int, k: int, dtype: torch.dtype) -> None:
    check_layer(fx, format, QuantArgs(type="float", strategy="group", group_size=size), n, k, dtype)


@pytest.mark.parametrize("format", ["float-quantized", "naive-quantized"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("strategy", "block"),
    [("tensor", None), ("channel", None), ("block", [16, 32]), ("block", [128, 128]), ("block", [7, 5])],
)
@pytest.mark.parametrize(("n", "k"), [(33, 70), (32, 64), (1, 1)])
def test_fp8_weights(fx: Any, format: str, strategy: str, block: Any, n: int, k: int, dtype: torch.dtype) -> None:
    weights = QuantArgs(num_bits=8, type="float", strategy=strategy, block_structure=block)
    if WRITER < (0, 19) and block is not None and (n % block[0] or k % block[1]):
        pytest.skip(f"compressed-tensors {'.'.join(map(str, WRITER))} cannot decompress partial blocks")
    check_layer(fx, format, weights, n, k, dtype)


@pytest.mark.parametrize(
    "weights",
    [
        QuantArgs(type="float", strategy="tensor"),
        QuantArgs(type="float", strategy="channel"),
        QuantArgs(type="float", strategy="block", block_structure=[16, 16]),
    ],
    ids=lambda args: args.strategy,
)
def test_every_fp8_code(fx: Any, weights: QuantArgs) -> None:
    """All 256 codes, both NaN and -0 among them."""
    headers, scheme_of, numerics_of, written, decompressed = fx
    tensors = written("float-quantized", weights, 16, 32, torch.float32)
    tensors["weight"] = torch.arange(512).to(torch.uint8).view(torch.float8_e4m3fn).reshape(16, 32)
    scheme = scheme_of("float-quantized", weights)
    shape = scheme.check("layer", headers(tensors))
    numerics = numerics_of(scheme)
    weight = numerics.dequantize(numerics.operands(tensors, shape, "layer"))
    assert torch.isnan(weight).sum() == 4
    assert torch.equal(bits_of(weight), bits_of(decompressed("float-quantized", weights, tensors)))


def test_dense_weights_are_what_they_are(headers: Any, scheme_of: Any, numerics_of: Any) -> None:
    scheme = scheme_of(None, None)
    for dtype in DTYPES:
        tensors = {"weight": torch.randn(3, 5).to(dtype), "bias": torch.randn(3).to(dtype)}
        shape = scheme.check("layer", headers(tensors))
        numerics = numerics_of(scheme)
        operands = numerics.operands(tensors, shape, "layer")
        assert torch.equal(numerics.dequantize(operands), tensors["weight"])
        stored = numerics.stored(operands, shape)
        assert set(stored) == {"weight", "bias"} and torch.equal(stored["weight"], tensors["weight"])
