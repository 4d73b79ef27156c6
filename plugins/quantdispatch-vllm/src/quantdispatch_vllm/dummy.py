"""``--load-format dummy``: no weights are read, and modules are made up of zeros where they would be."""

from __future__ import annotations

import torch
from vllm.config import get_current_vllm_config_or_none

from quantdispatch.engines.adapters.parts import Part
from quantdispatch.engines.tensors import DTYPES
from quantdispatch.registry.scheme import LayerShape


def wanted() -> bool:
    config = get_current_vllm_config_or_none()
    return config is not None and config.load_config.load_format == "dummy"


def fill(part: Part) -> Part:
    """The part with stored tensors of the right shapes: codes are zero, scales one, and nothing is cut."""
    part.where = type(part.where)()
    for stored in part.scheme.stored(LayerShape(part.n, part.k, "dense")):
        dtype = DTYPES[sorted(stored.dtypes)[0]]
        if stored.name == "weight_shape":
            tensor = torch.tensor([part.n, part.k], dtype=torch.int64)
        elif "scale" in stored.name and dtype is not torch.uint8:
            tensor = torch.ones(stored.shapes[0]).to(dtype)
        else:
            tensor = torch.zeros(stored.shapes[0], dtype=torch.uint8 if dtype.itemsize == 1 else dtype)
            tensor = tensor.view(dtype) if dtype.itemsize == 1 else tensor
        part.take(stored.name, tensor)
    return part
