"""Binding a kernel to a layer: choose one that works here, and build its implementation."""

from __future__ import annotations

from functools import cache
from typing import cast

import torch

from ..registry.environment import Environment
from ..registry.errors import NoKernelFound
from ..registry.facts import KernelSpec
from ..registry.kernels import Kernel, refusal
from ..registry.lazy import load_target
from ..registry.registry import get_registry
from ..registry.scheme import KernelImpl


def choose_kernel(name: str, spec: KernelSpec, device: torch.device, backend: str | None = None) -> Kernel:
    """The best kernel for ``spec`` on ``device`` whose probe succeeds here.

    ``name``: of the layer, for the message. ``backend``: the only one to consider. Raises ``NoKernelFound`` with each
    kernel's reason, and ``PluginError`` for a backend that nobody registers.
    """
    environment = _environment(device_name(device))
    selection = get_registry().select(spec, environment, backend=backend, probe=True)
    if selection.kernel is not None:
        return selection.kernel
    wanted = f" in backend {backend!r}" if backend else ""
    asked = [candidate for candidate in selection.trace if backend in (None, candidate.kernel.backend)]
    reasons = "; ".join(str(candidate) for candidate in (asked if backend else asked[:3]))
    raise NoKernelFound(
        f"no kernel{wanted} computes {spec.scheme} (N={spec.n}, K={spec.k}, {spec.dtype}) on {environment.describe()}: "
        f"{reasons or 'none is registered'}",
        nearest=selection.trace,
        layer=name,
        **refusal(asked, spec, backend),
        remedy="leave the backend free, or choose another dtype" if backend else None,
        code="QD751",
    )


def implementation(kernel: Kernel, spec: KernelSpec) -> KernelImpl:
    """Import a kernel's class and bind it to ``spec``. Raises ``PluginError`` when its target is not there."""
    return cast(KernelImpl, load_target(kernel.target)(spec))


def device_name(device: torch.device) -> str:
    """A device of torch as plans name it: ``cpu``, ``cuda:1``, ``rocm:0``. ROCm devices are "cuda" to torch, and each
    of several may be of another architecture."""
    if device.type != "cuda":
        return device.type
    index = device.index if device.index is not None else torch.cuda.current_device()
    return f"{'rocm' if torch.version.hip else 'cuda'}:{index}"


@cache
def _environment(name: str) -> Environment:
    return Environment.detect(name)
