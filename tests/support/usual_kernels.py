"""Names of the kernels that are chosen on a CPU, with the native library built and without."""

from __future__ import annotations

from quantdispatch.registry.environment import native_library

NATIVE = native_library() is not None
INT4 = "cpu/native" if NATIVE else "cpu/int4_torch"
INT8 = "cpu/native" if NATIVE else "cpu/int8_torch"
FP8 = "cpu/native" if NATIVE else "cpu/dequant"
MICROFLOAT = "cpu/native" if NATIVE else "cpu/microfloat"
