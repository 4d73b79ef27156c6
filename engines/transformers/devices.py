"""What a device map says of one module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def kind_of(device: Any) -> str:
    """``"cpu"``, ``"cuda"`` or ``"disk"``."""
    if isinstance(device, int):
        return "cuda"
    return device if device == "disk" else torch.device(device).type


def device_of(device_map: Any, name: str) -> torch.device:
    """The device of the longest prefix of ``name`` in the map."""
    if not isinstance(device_map, Mapping):
        return torch.device("cpu")
    while name and name not in device_map:
        name = name.rpartition(".")[0]
    return torch.device(device_map.get(name, "cpu"))
