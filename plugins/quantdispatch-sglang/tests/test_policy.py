"""Whose class computes a layer, for devices that need not be here."""

from __future__ import annotations

from typing import Any

import pytest
from quantdispatch_sglang.policy import choose, settings_of

from quantdispatch import NoSchemeFound
from quantdispatch.engines.adapters.layers import LayerTable
from quantdispatch.registry.environment import Environment

INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}
ASYMMETRIC = {**INT4, "symmetric": False}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
TOKEN = {**INT8, "strategy": "token", "dynamic": True}
STATIC = {**INT8, "strategy": "tensor"}
MXFP4 = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32}
NV = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16}
PACKED, INTS = "pack-quantized", "int-quantized"


def chosen(
    weights: Any, inputs: Any, form: str, device: str, kind: str = "linear", runner: str = "auto", fp4: str = "auto"
) -> Any:
    block = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}},
    }
    environment = Environment.detect(device)
    table = LayerTable(block, environment=environment)
    last = "model.layers.0.mlp.experts.0.down_proj" if kind == "moe" else "model.layers.0.mlp.down_proj"
    return choose(table.resolve(last, kind), environment, settings_of(runner, fp4))


@pytest.mark.parametrize(
    ("weights", "inputs", "form", "device", "kind", "expected"),
    [
        (INT4, None, PACKED, "cpu", "linear", ("ours", None)),
        (INT4, None, PACKED, "cuda:sm90", "linear", ("theirs", "CompressedTensorsWNA16")),
        (INT4, None, PACKED, "cuda:sm75", "linear", ("ours", None)),
        (ASYMMETRIC, None, PACKED, "cuda:sm90", "linear", ("theirs", "CompressedTensorsWNA16")),
        ({**ASYMMETRIC, "num_bits": 8}, None, PACKED, "cuda:sm90", "linear", ("ours", None)),
        ({**INT4, "group_size": 16}, None, PACKED, "cuda:sm90", "linear", ("ours", None)),
        ({**INT4, "num_bits": 3}, None, PACKED, "cuda:sm90", "linear", ("ours", None)),
        (INT8, None, INTS, "cuda:sm90", "linear", ("ours", None)),
        (INT8, TOKEN, INTS, "cuda:sm90", "linear", ("theirs", "CompressedTensorsW8A8Int8")),
        ({**INT8, "strategy": "tensor"}, TOKEN, INTS, "cuda:sm90", "linear", ("ours", None)),
        (INT8, STATIC, INTS, "cuda:sm90", "linear", ("ours", None)),
        (INT8, {**STATIC, "symmetric": False}, INTS, "cuda:sm90", "linear", ("ours", None)),
        (INT8, {**TOKEN, "symmetric": False}, INTS, "cuda:sm90", "linear", ("ours", None)),
        (INT8, TOKEN, INTS, "cuda:sm90", "moe", ("ours", None)),
        (INT4, None, PACKED, "cuda:sm90", "moe", ("theirs", "CompressedTensorsWNA16MoE")),
        (INT4, None, PACKED, "cuda:sm100", "moe", ("theirs", "CompressedTensorsWNA16TritonMoE")),
        (MXFP4, None, "mxfp4-pack-quantized", "cuda:sm90", "moe", ("theirs", "Mxfp4MoEMethod")),
        (MXFP4, None, "mxfp4-pack-quantized", "cuda:sm90", "linear", ("ours", None)),
        (NV, None, "nvfp4-pack-quantized", "cuda:sm90", "linear", ("theirs", "CompressedTensorsW4A16Fp4")),
    ],
)
def test_choice(weights: Any, inputs: Any, form: str, device: str, kind: str, expected: Any) -> None:
    assert chosen(weights, inputs, form, device, kind) == expected


def test_settings_of_sglang_count() -> None:
    inputs = {**NV, "dynamic": "local"}
    one = chosen(NV, inputs, "nvfp4-pack-quantized", "cuda:sm100")
    other = chosen(NV, inputs, "nvfp4-pack-quantized", "cuda:sm100", fp4="marlin")
    # --fp4-gemm-backend marlin leaves the inputs unquantized
    assert one == ("theirs", "CompressedTensorsW4A4Fp4") and other == ("ours", None)
    triton = chosen(INT4, None, PACKED, "cuda:sm90", "moe", runner="triton")
    assert triton == ("theirs", "CompressedTensorsWNA16TritonMoE")
    assert settings_of("deep_gemm", "cutlass") == {"runner": "auto", "fp4_gemm": "auto"}


def test_what_nothing_resolves_is_an_error() -> None:
    """Experts with zero points need the plugin, on every device."""
    from quantdispatch.testing import registry_with, using_registry

    for device in ("cpu", "cuda:sm90"):
        with using_registry(registry_with()), pytest.raises(NoSchemeFound):
            chosen(ASYMMETRIC, None, PACKED, device, "moe")
