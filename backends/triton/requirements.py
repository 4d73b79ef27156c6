"""What every Triton kernel demands of its environment, and the words in which records say the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ...registry.domains import between
from ...registry.gpus import AMPERE_ON, ROCM_FNUZ
from ...registry.kernels import Absent, Args, Needs

#: a ``moe`` layer is one projection of one expert, and computed like any other
KINDS = frozenset({"linear", "lm_head", "moe"})
#: activations
HALVES = frozenset({"bfloat16", "float16"})
FLOATS = frozenset({*HALVES, "float32"})
#: scales that are plain floats
SCALES = frozenset({None, *FLOATS})
#: releases that the kernels are compiled and tested with, and families that these cannot serve: on sm100 the older ones
#: compile products of many rows to code that does nothing, and say so nowhere
RELEASES: tuple[tuple[Any, frozenset[str]], ...] = (
    (between(308, 399), frozenset()),
    (between(306, 307), frozenset({"sm100"})),
)


def devices(cuda: Iterable[str] = AMPERE_ON, rocm: Iterable[str] = ROCM_FNUZ) -> Iterator[dict[str, Any]]:
    """The device part of requirements, one for each device and range of Triton's releases, where there are families.

    Below sm80 Triton has no matrix instructions worth using. gfx942 has no OCP e4m3 of its own: what computes in it is
    excluded there by ``rocm=()``, what only decodes it is not.
    """
    for device, families in (("cuda", frozenset(cuda)), ("rocm", frozenset(rocm))):
        for releases, without in RELEASES:
            if left := families - without:
                yield {"device": device, "family": left, "version.triton": releases}


def needs(where: dict[str, Any], weights: Args, inputs: Any = Absent, **fields: Any) -> Needs:
    """One box: weight-only unless ``inputs`` says otherwise, activations of 16 bits, no g_idx, outputs as they are."""
    fields = {"dtype": HALVES, "g_idx": False, "outputs": Absent, "kind": KINDS, **where, **fields}
    return Needs(fields, weights=weights, inputs=inputs)
