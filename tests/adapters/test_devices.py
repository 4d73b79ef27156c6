"""Names of devices in plans, to where torch has them; machines with GPUs are pretended."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stored_layers import config, stored, weights

from quantdispatch.engines.adapters.cutting import Cut
from quantdispatch.engines.adapters.devices import device_here
from quantdispatch.engines.adapters.layers import LayerTable
from quantdispatch.engines.adapters.parts import Part
from quantdispatch.registry.errors import CheckpointError, ConfigError

BLOCK = config((["Linear"], weights(), None, "pack-quantized"))
NAME = "model.layers.0.mlp.down_proj"


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``gpus(2)``: as many of sm90, the second one current."""

    def pretend(count: int, hip: str | None = None) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: count - 1)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index=None: (9, 0))
        monkeypatch.setattr(torch.version, "hip", hip)

    return pretend


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cpu", "cpu"), ("cuda:sm90", "cuda:1"), ("cuda:sm90a", "cuda:1"), (torch.device("cuda:0"), "cuda:0"),
    ],
)  # fmt: skip
def test_a_planned_device_is_the_current_gpu(name: Any, expected: str, gpus: Any) -> None:
    gpus(2)
    assert device_here(name) == torch.device(expected)


def test_a_planned_rocm_device_is_cuda_to_torch(gpus: Any) -> None:
    gpus(1, hip="6.4")
    assert device_here("rocm:gfx942") == torch.device("cuda:0")


@pytest.mark.parametrize(
    ("count", "name", "code"),
    [
        (0, "cuda:sm90", "QD522"), (0, "rocm:gfx942", "QD522"), (0, "cuda", "QD522"), (1, "cuda:sm100", "QD522"),
        (1, "rocm:gfx942", "QD522"), (0, "tpu", "QD521"), (1, "tpu", "QD521"), (1, "cuda:sm9z", "QD521"),
    ],
)  # fmt: skip
def test_a_device_that_is_not_here_is_an_error_of_its_own(count: int, name: str, code: str, gpus: Any) -> None:
    gpus(count)
    with pytest.raises(ConfigError) as caught:
        device_here(name)
    assert caught.value.code == code and name in str(caught.value) and caught.value.field == "device"


def test_a_part_on_a_planned_device_that_is_not_here() -> None:
    with pytest.raises(ConfigError, match="cuda:sm90 is not a device of this machine"):
        Part(LayerTable(BLOCK).layer(NAME), Cut(), 32, 64, torch.float32, device="cuda:sm90")


def test_what_a_part_is_given_is_brought_to_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaders read files to the CPU, and kernels of a GPU can compute with nothing there."""
    part = Part(LayerTable(BLOCK).layer(NAME), Cut(), 32, 64, torch.float32)
    part.device = torch.device("meta")
    monkeypatch.setattr(part, "bind", lambda: None)
    for name, tensor in stored(BLOCK, NAME, 32, 64).tensors.items():
        part.take(name, tensor)
    assert part._tensors and all(tensor.is_meta for tensor in part._tensors.values())


def test_a_tensor_that_was_never_read_is_named() -> None:
    part = Part(LayerTable(BLOCK).layer(NAME), Cut(), 32, 64, torch.float32)
    with pytest.raises(CheckpointError, match="was never read") as caught:
        part.take("weight_packed", torch.empty(32, 8, dtype=torch.int32, device="meta"))
    assert (caught.value.layer, caught.value.field) == (NAME, "weight_packed")
