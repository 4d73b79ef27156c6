"""Kernels run where their tensors are, which need not be the current device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from quantdispatch.backends import device_linear
from quantdispatch.engines import binding


@pytest.mark.parametrize(("index", "switched"), [(0, False), (1, True)])
def test_another_gpu_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch, index: int, switched: bool) -> None:
    entered = []

    class Device:
        def __init__(self, device: torch.device) -> None:
            self.device = device

        def __enter__(self) -> None:
            entered.append(self.device)

        def __exit__(self, *error: Any) -> None:
            entered.append(None)

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", Device)
    x: Any = SimpleNamespace(is_cuda=True, device=torch.device("cuda", index))
    with device_linear.there(x):
        assert entered == ([x.device] if switched else [])
    with device_linear.there(torch.ones(1)):
        assert len(entered) == (2 if switched else 0)


def test_each_of_several_gpus_is_asked_for_its_own_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.version, "hip", None)
    assert binding.device_name(torch.device("cuda", 3)) == "cuda:3"
    assert binding.device_name(torch.device("cuda")) == "cuda:1"
    assert binding.device_name(torch.device("cpu")) == "cpu"
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert binding.device_name(torch.device("cuda", 0)) == "rocm:0"
    monkeypatch.setattr(
        "quantdispatch.registry.environment._present_arch", lambda kind, index: ("sm80", "sm90")[index]
    )  # fmt: skip
    monkeypatch.setattr(torch.version, "hip", None)
    binding._environment.cache_clear()
    families = [binding._environment(binding.device_name(torch.device("cuda", i))).facts["family"] for i in (0, 1)]
    binding._environment.cache_clear()
    assert families == ["sm80", "sm90"]
