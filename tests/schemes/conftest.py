"""Layers as compressed-tensors writes them, and their tensors as safetensors headers show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest
import torch

from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.facts import LayerFacts
from quantdispatch.registry.scheme import Scheme
from quantdispatch.schemes.dense import Dense
from quantdispatch.schemes.fp8 import W8A8Fp8, W8A16Fp8
from quantdispatch.schemes.kv_fp8 import KVFp8
from quantdispatch.schemes.w4a8_fp8 import W4A8Fp8
from quantdispatch.schemes.wna4_int import WNA4Int
from quantdispatch.schemes.wna8_int import WNA8Int
from quantdispatch.schemes.wna8o8_int import WNA8O8Int
from quantdispatch.schemes.wna16_int import WNA16Int

CODES = {
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.float8_e4m3fn: "F8_E4M3",
}


@dataclass(frozen=True)
class Info:
    """One header entry, with bytes or without."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes | None = None

    def read(self) -> bytes | None:
        return self.data


def _raw(tensor: torch.Tensor) -> bytes:
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.fixture
def headers() -> Callable[..., dict[str, Info]]:
    """``headers(tensors, bytes_too=False)``: header entries; ``bytes_too=False`` stands for a hub id."""

    def build(tensors: Mapping[str, torch.Tensor], bytes_too: bool = True) -> dict[str, Info]:
        return {
            name: Info(
                name,
                CODES[tensor.dtype],
                tuple(tensor.shape),
                _raw(tensor) if bytes_too else None,
            )
            for name, tensor in tensors.items()
        }

    return build


@pytest.fixture
def scheme_of() -> Callable[..., Scheme]:
    """``scheme_of(format, weights, inputs=None, version="0.20.1", outputs=None, kind="linear")``: the scheme that the
    built-in rules name."""

    def build(
        format: str | None,
        weights: QuantArgs | None,
        inputs: QuantArgs | None = None,
        version: str | None = "0.20.1",
        outputs: QuantArgs | None = None,
        kind: str = "linear",
    ) -> Scheme:
        layer = LayerFacts(kind, format, weights, inputs, outputs)
        return _class_of(layer)(layer, version=version)

    return build


def _class_of(layer: LayerFacts) -> type[Scheme]:
    weights, inputs = layer.weights, layer.inputs
    if weights is None:
        return Dense if inputs is None else KVFp8
    if weights.type == "float":
        return W8A16Fp8 if inputs is None else W8A8Fp8
    if inputs is None:
        return WNA16Int
    if inputs.type == "float":
        return W4A8Fp8
    if layer.outputs is not None:
        return WNA8O8Int
    return WNA4Int if inputs.num_bits == 4 else WNA8Int


@pytest.fixture
def numerics_of() -> Callable[[Scheme], Any]:
    """The torch half that a scheme names."""

    def build(scheme: Scheme) -> Any:
        module, attribute = scheme.numerics.split(":")
        return getattr(import_module(module), attribute)(scheme.layer)

    return build


@pytest.fixture
def written() -> Callable[..., dict[str, torch.Tensor]]:
    """``written(format, weights, n, k, dtype, seed=0)``: a random layer in the tensors of the installed
    compressed-tensors, by its own compressor."""
    return write_layer


def write_layer(
    format: str, weights: QuantArgs, n: int, k: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0
) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows, columns = weights.block_structure or (1, 1)
    grid = {
        "tensor": (1,),
        "channel": (n, 1),
        "group": (n, k // (weights.group_size or 1)),
        "block": (-(-n // rows), -(-k // columns)),
    }[str(weights.strategy)]
    levels = 448.0 if weights.type == "float" else float(1 << (weights.num_bits - 1))
    state = {
        "weight": torch.randn(n, k, generator=generator).to(dtype),
        "weight_scale": ((torch.rand(grid, generator=generator) + 0.5) * 2 / levels).to(dtype),
    }
    if not weights.symmetric:
        half = int(levels)
        state["weight_zero_point"] = torch.randint(-half, half, grid, generator=generator).to(torch.int8)
    compressor, scheme = theirs(format, weights)
    tensors: dict[str, torch.Tensor] = compressor.compress(state, scheme)
    return tensors


def theirs(format: str, weights: QuantArgs) -> tuple[Any, Any]:
    """compressed-tensors' compressor of a format, and these args as its own."""
    pytest.importorskip("compressed_tensors", reason="the layers of this test are written by compressed-tensors")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    args = QuantizationArgs(**weights.to_json())
    return BaseCompressor.get_value_from_registry(format), QuantizationScheme(targets=["Linear"], weights=args)


@pytest.fixture
def decompressed() -> Callable[..., torch.Tensor]:
    """``decompressed(format, weights, tensors)``: the weight as the installed compressed-tensors decompresses it."""

    def build(format: str, weights: QuantArgs, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        compressor, scheme = theirs(format, weights)
        weight: torch.Tensor = compressor.decompress(dict(tensors), scheme)["weight"]
        return weight

    return build
