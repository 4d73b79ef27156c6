"""Kernels of our own in Triton, for CUDA from sm80 on and for gfx942. docs/triton.md describes them.

Importing this is cheap: records only. Triton is imported when a layer is bound.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...registry.kernels import Kernel
from .quantized_records import kernels as quantized_inputs
from .wna16_records import kernels as weight_only


def kernels() -> Iterator[Kernel]:
    """The records, best first within each op."""
    yield from weight_only()
    yield from quantized_inputs()
