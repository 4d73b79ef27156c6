"""Devices as plans name them, and where torch has them in this process."""

from __future__ import annotations

import torch

from ...registry.environment import parse_device
from ...registry.errors import ConfigError


def device_here(device: str | torch.device) -> torch.device:
    """``"cuda:sm90"`` and ``"rocm"`` to torch's current GPU, ``"cuda:1"`` to that one, ``"cpu"`` to the CPU.

    A plan can be made for any device, and its names are not torch's. Raises ``ConfigError`` for what is no device, and
    for one that is not here.
    """
    if isinstance(device, torch.device):
        return device
    kind, _, which = device.partition(":")
    if kind == "cpu" or not torch.cuda.is_available():
        if kind != "cpu":
            parse_device(device)
            raise _absent(device, "none that torch can use")
        return torch.device(kind)
    parse_device(device)
    if kind != ("rocm" if torch.version.hip else "cuda"):
        raise _absent(device, "ROCm" if torch.version.hip else "CUDA")
    index = int(which) if which.isdecimal() else torch.cuda.current_device()
    if index >= torch.cuda.device_count():
        raise _absent(device, f"{torch.cuda.device_count()} of them")
    major, minor = torch.cuda.get_device_capability(index)
    arch = f"sm{major}{minor}"
    if which.startswith("sm") and which.rstrip("af") != arch:
        raise _absent(device, arch)
    return torch.device("cuda", index)


def _absent(device: str, observed: str) -> ConfigError:
    return ConfigError(
        f"{device} is not a device of this machine", field="device", observed=observed, required=device,
        remedy="a plan can be made for a device that is not here; tensors can only be where there is one", code="QD522",
    )  # fmt: skip
