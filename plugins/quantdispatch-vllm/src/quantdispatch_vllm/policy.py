"""Who computes a module: vLLM's own classes, or quantdispatch's kernels. Knows nothing of vLLM's code."""

from __future__ import annotations

from typing import Literal

from quantdispatch.engines.adapters.layers import Members
from quantdispatch.registry.errors import NoKernelFound
from quantdispatch.registry.resolution import Resolution
from quantdispatch.registry.resolver import DENSE

ENGINE = "vllm"
Choice = Literal["dense", "theirs", "ours"]


def choose(module: Members, device: str, order: str) -> Choice:
    """``dense``: nothing of the module is quantized. ``theirs``: vLLM has a class with the same numeric contract for
    all of it, and that is preferred; ours serve where it cannot be made. ``ours``: vLLM has none, or ours are
    preferred.

    Raises the error of a member that does not resolve, unless only a kernel of ours is missing and vLLM has a class.
    """
    for layer in module.layers:
        if layer.error is not None and not (isinstance(layer.error, NoKernelFound) and layer.equivalents.get(ENGINE)):
            raise layer.error
    if not module.quantized:
        return "dense"
    if not known_to_vllm(module):
        return "ours"
    if order == "first":
        return "ours" if all(_serves(layer) for layer in module.layers) else "theirs"
    if order == "auto" and device == "cpu" and all(_compiled(layer) for layer in module.layers):
        return "ours"
    return "theirs"


def known_to_vllm(module: Members) -> bool:
    """Has vLLM a class that computes what the config says, the same for all members?"""
    return module.alike and bool(module.first.equivalents.get(ENGINE))


def _serves(layer: Resolution) -> bool:
    return layer.kernel is not None and layer.backend != "reference"


def _compiled(layer: Resolution) -> bool:
    return layer.scheme == DENSE or (layer.kernel or "").startswith("cpu/native")
