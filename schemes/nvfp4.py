"""``w4a4_nvfp4`` and ``w4a16_nvfp4``: fp4 (e2m1) weights in groups of 16 below one global scale.

Format: compressed-tensors ``nvfp4-pack-quantized`` (``compressors/nvfp4/base.py``): two codes a byte, the low nibble
first; e4m3 scales of the groups; ``weight_global_scale`` [1], by which the scales are **divided**.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..registry.scheme import LayerShape, StoredTensor
from .microscaling import MicroscalingScheme
from .stored import ONE

#: the scales are e4m3; some writers know no dtype for that and keep the same bytes as U8
GROUP_SCALES = frozenset({"F8_E4M3", "U8"})
GLOBAL_SCALES = frozenset({"F32"})


class NvFp4Scheme(MicroscalingScheme):
    """Common half; the subclasses differ in what they do with inputs."""

    numerics: ClassVar[str] = "quantdispatch.schemes.reference.nvfp4:NvFp4Numerics"

    def stored(self, shape: LayerShape) -> Sequence[StoredTensor]:
        tensors = [
            self.codes(shape),
            self.scales(shape, GROUP_SCALES),
            StoredTensor("weight_global_scale", ONE, GLOBAL_SCALES, ("",)),
        ]
        if self.layer.inputs is not None:
            tensors.append(StoredTensor("input_global_scale", ONE, GLOBAL_SCALES, ("",)))
        return tensors


class W4A4NvFp4(NvFp4Scheme):
    """Inputs: nvfp4 too, groups of 16 scaled at run time below a stored ``input_global_scale``."""

    name: ClassVar[str] = "w4a4_nvfp4"


class W4A16NvFp4(NvFp4Scheme):
    """Weight-only."""

    name: ClassVar[str] = "w4a16_nvfp4"
