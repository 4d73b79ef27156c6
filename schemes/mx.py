"""The OCP microscaling schemes: fp4 (e2m1), fp6 (e2m3) or fp8 (e4m3) weights in groups of 32 below a power of two.

Formats: compressed-tensors ``mxfp4-pack-quantized`` (two codes a byte, the low nibble first), ``mxfp6-pack-quantized``
(four codes in three bytes, low bits first) and ``mxfp8-quantized`` (one a byte); ``weight_scale`` is the exponent with
bias 127, one byte (``compressors/mx_utils.py``). ``float-quantized`` and ``naive-quantized`` keep the scale as the
float that it is, a power of two; an exponent in a byte is read there too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..registry.scheme import LayerShape, StoredTensor
from .microscaling import MicroscalingScheme
from .stored import FLOATS

#: e8m0 as such, or the same bytes without that dtype's name
EXPONENTS = frozenset({"U8", "F8_E8M0"})
#: formats that know nothing of exponents
PLAIN_FORMATS = frozenset({"float-quantized", "naive-quantized"})


class MxScheme(MicroscalingScheme):
    """Common half; the subclasses differ in their codes and in what they do with inputs, which are scaled at run time
    and store nothing."""

    numerics: ClassVar[str] = "quantdispatch.schemes.reference.mx:MxNumerics"

    def stored(self, shape: LayerShape) -> Sequence[StoredTensor]:
        dtypes = EXPONENTS | FLOATS if self.layer.format in PLAIN_FORMATS else EXPONENTS
        return self.codes(shape), self.scales(shape, dtypes)


class W4A4MxFp4(MxScheme):
    """Inputs: mxfp4."""

    name: ClassVar[str] = "w4a4_mxfp4"


class W4A8MxFp4(MxScheme):
    """Inputs: fp8 per token, fp8 per group with plain scales, or mxfp8."""

    name: ClassVar[str] = "w4a8_mxfp4"


class W4A16MxFp4(MxScheme):
    """Weight-only."""

    name: ClassVar[str] = "w4a16_mxfp4"


class W6A8MxFp6(MxScheme):
    """Inputs: mxfp8."""

    name: ClassVar[str] = "w6a8_mxfp6"


class W6A16MxFp6(MxScheme):
    """Weight-only."""

    name: ClassVar[str] = "w6a16_mxfp6"


class W8A8MxFp8(MxScheme):
    """Inputs: mxfp8."""

    name: ClassVar[str] = "w8a8_mxfp8"


class W8A16MxFp8(MxScheme):
    """Weight-only."""

    name: ClassVar[str] = "w8a16_mxfp8"
