"""Which kernel comes first where several compute the same: the usual order of backends, where it is another one, and
what was measured on the user's own machine.

Every entry says where it comes from. None was measured on a GPU by this project yet: those for GPUs follow what engines
prefer and what was published, and ``quantdispatch bench`` writes a file that stands above them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .domains import Domain, at_least
from .facts import KernelSpec
from .gpus import FP8
from .kernels import DEFAULT_RANK, Kernel

#: of the orders between backends that hold everywhere (``BACKEND_RANKS``), where each comes from
SOURCES = {
    "marlin": "published: up to 3.9x fp16 at 1 to 32 rows (A10); not yet run on a GPU here",
    "triton": "this project's own; not yet ranked by measurement",
    "torch": "vendor libraries, without fusion; not yet run on a GPU here",
    "cpu": "measured: docs/cpu-backend.md",
    "reference": "last, whatever a plugin declares",
}


@dataclass(frozen=True)
class Standing:
    """Where ``who``, a backend or a kernel by its whole name, ranks as if its backend's rank were ``rank``.

    ``schemes``, ``families``, ``kinds``, ``rows``: of the tasks that it holds for; ``rows`` is tokens a call.
    """

    who: str
    rank: int
    source: str
    schemes: frozenset[str] | None = None
    families: frozenset[str] | None = None
    kinds: frozenset[str] | None = None
    rows: Domain = Domain()
    op: str = "linear"

    def holds(self, spec: KernelSpec, facts: Mapping[str, Any]) -> bool:
        asked = ((self.schemes, spec.scheme), (self.families, facts.get("family")), (self.kinds, spec.kind))
        if self.op != spec.op or any(wanted is not None and value not in wanted for wanted, value in asked):
            return False
        return facts.get("rows", 1) in self.rows

    def of(self, kernel: Kernel) -> bool:
        return self.who in (kernel.backend, kernel.name)


STANDINGS = (
    Standing("marlin/vllm_weights", 40, "computes less than the scheme says: only where nothing computes all of it"),
    Standing(
        "torch",
        125,
        "vLLM 0.32 prefers cuBLASLt and CUTLASS for fp8 x fp8 above kernels of Triton",
        schemes=frozenset({"w8a8_fp8"}),
        families=FP8,
        rows=at_least(17),
    ),
    Standing(
        "triton",
        135,
        "published: Marlin is as fast as fp16 from about 128 rows on; a kernel that decodes once a tile is for those",
        schemes=frozenset({"wNa16_int"}),
        rows=at_least(1024),
    ),
)


def standing(kernel: Kernel, spec: KernelSpec, facts: Mapping[str, Any], ranks: Mapping[str, int]) -> tuple[int, str]:
    """The rank of a kernel's backend for a task, and its source where it is not the usual one."""
    for entry in STANDINGS:
        if entry.of(kernel) and entry.holds(spec, facts):
            return entry.rank, entry.source
    return ranks.get(kernel.backend, DEFAULT_RANK), ""


def arranged(
    kernels: Sequence[Kernel], spec: KernelSpec, facts: Mapping[str, Any], ranks: Mapping[str, int]
) -> Sequence[Kernel]:
    """``kernels``, given in their usual order, in the order for a task: measured ones first, best first, then by the
    rank of their backends there."""
    if not spec.measured and not any(entry.holds(spec, facts) for entry in STANDINGS):
        return kernels
    place = {name: number for number, name in enumerate(spec.measured)}
    # sorting is stable: within a rank the usual order stays
    return sorted(
        kernels, key=lambda k: (place.get(k.name, len(place)), -standing(k, spec, facts, ranks)[0])
    )  # fmt: skip


def why(kernel: Kernel | None, spec: KernelSpec, facts: Mapping[str, Any], ranks: Mapping[str, int]) -> str:
    """The source of the chosen kernel's place, where it is not the usual one."""
    if kernel is None:
        return ""
    if kernel.name in spec.measured:
        return spec.measured_by
    return standing(kernel, spec, facts, ranks)[1]


def sources(kernels: Iterable[Kernel]) -> dict[str, str]:
    """Backend to the source of its usual rank, of those that are registered."""
    names = sorted({kernel.backend for kernel in kernels})
    return {name: SOURCES.get(name, "declared by its plugin, or the default") for name in names}
