"""GPUs by the features that kernels are compiled for, not by their numbers.

A capability is no range: what a kernel uses of sm90 (wgmma, TMA) is not in sm100, and sm120 has neither tcgen05 nor
sm100's memory. So each architecture belongs to one family, and kernels list the families that they were written for.
"""

from __future__ import annotations

import re

#: of each family the architectures whose features it has: NVIDIA's compute capabilities, CUDA C++ Programming Guide.
#: sm101 and sm110 are in none: Triton 3.9 aborts on int8 products for sm110, and ptxas knows no sm101a, so kernels
#: exclude them by family
_MEMBERS = {
    "sm75": (75,),
    "sm80": (80, 86, 87),
    "sm89": (89,),
    "sm90": (90,),
    "sm100": (100, 103),
    "sm120": (120, 121),
}
_FAMILY = {f"sm{number}": family for family, numbers in _MEMBERS.items() for number in numbers}
#: families by what they can do; kernels' requirements name these sets
CUDA = tuple(_MEMBERS)
#: matrix instructions of bf16, and asynchronous copies
AMPERE_ON = frozenset(CUDA) - {"sm75"}
#: matrix instructions of fp8 e4m3
FP8 = frozenset({"sm89", "sm90", "sm100", "sm120"})
#: matrix instructions with block scales: nvfp4, mxfp4, mxfp8
BLOCK_SCALED = frozenset({"sm100", "sm120"})
ROCM_FNUZ = frozenset({"gfx942"})
#: devices that tables and pages show
SHOWN = ("cuda:sm75", "cuda:sm80", "cuda:sm89", "cuda:sm90", "cuda:sm100", "cuda:sm120", "rocm:gfx942")


def family_of(arch: str) -> str:
    """``"sm86"`` to ``"sm80"``, ``"sm90a"`` to ``"sm90"``; an architecture that no family has is one by itself."""
    plain = re.sub(r"(?<=\d)[af]$", "", arch) if arch.startswith("sm") else arch
    return _FAMILY.get(plain, plain)
