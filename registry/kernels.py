"""Kernel records, and the choice among them.

A kernel declares what it needs on the same predicates as rules; kernels overlap by design, so they are ranked: backend
rank, then kernel rank, then name. The first admissible one wins and every one before it has its reason in the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import ConfigError
from .facts import KernelSpec
from .lazy import load_target
from .predicates import Args, Mismatch, Needs, Predicate, in_words, union
from .rules.rule import _TARGET
from .values import ABSENT as Absent

__all__ = ["Absent", "Args", "BACKEND_RANKS", "Backend", "Kernel", "KernelCandidate", "Needs", "Selection", "select"]


@dataclass(frozen=True)
class Backend:
    """A family of kernels and its rank; a higher rank is preferred."""

    name: str
    rank: int


#: reference comes last whatever a plugin declares; a backend nobody declared stands between the two
BACKEND_RANKS = {"marlin": 130, "triton": 120, "torch": 110, "cpu": 100, "reference": -1_000_000}
DEFAULT_RANK = 50


@dataclass(frozen=True)
class Kernel:
    """One implementation of ``op``. ``target``: ``"module:attr"`` of a ``KernelImpl``, imported only when bound.

    ``requires``: one ``Needs`` or several (a union). ``probe``: ``"module:attr"`` of a function that returns ``None``
    where the kernel works and the reason where it does not; it runs when binding, not when explaining.
    ``deviations``: what it computes differently from the scheme, e.g. ``"inputs stay unquantized"``.
    """

    name: str
    op: str
    requires: Predicate | Iterable[Needs]
    target: str
    rank: int = 0
    probe: str | None = None
    slow: bool = False
    deviations: tuple[str, ...] = ()
    distribution: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for name, value in (("target", self.target), ("probe", self.probe)):
            if value is not None and not (isinstance(value, str) and _TARGET.fullmatch(value)):
                raise TypeError(f"kernel {self.name}: {name} is 'module:attr', not {value!r}")
        object.__setattr__(self, "requires", union(self.requires, Needs))

    @property
    def backend(self) -> str:
        """The part of the name before the slash."""
        return self.name.partition("/")[0]

    @property
    def predicate(self) -> Predicate:
        """``requires``, which is a predicate from the constructor on."""
        assert isinstance(self.requires, Predicate)
        return self.requires

    def to_json(self) -> dict[str, Any]:
        """Name, backend, ranks and requirements, as ``rules --json`` has them."""
        return {
            "name": self.name,
            "backend": self.backend,
            "op": self.op,
            "requires": [box.to_json() for box in self.predicate.boxes],
            "rank": self.rank,
            "slow": self.slow,
            "deviations": list(self.deviations),
            "distribution": self.distribution,
        }


@dataclass(frozen=True)
class KernelCandidate:
    """One kernel's answer: ``"yes"``, ``"no"`` with reasons, or ``"if"`` with the conditions as reasons."""

    kernel: Kernel
    status: str
    reasons: tuple[str, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()

    def __str__(self) -> str:
        return f"{self.kernel.name}: {'; '.join(self.reasons) or self.status}"

    def to_json(self) -> dict[str, Any]:
        return {"kernel": self.kernel.name, "status": self.status, "reasons": list(self.reasons)}


@dataclass(frozen=True)
class Selection:
    """The chosen kernel (or ``None``), the conditions it stands under, and every candidate in rank order. ``ranked``:
    where its place comes from, if it is not the usual order of backends."""

    kernel: Kernel | None
    conditions: tuple[str, ...]
    trace: tuple[KernelCandidate, ...]
    ranked: str = ""


def ordered(kernels: Iterable[Kernel], ranks: Mapping[str, int]) -> list[Kernel]:
    """The total order: backend rank, kernel rank (both descending), name."""
    return sorted(kernels, key=lambda k: (-ranks.get(k.backend, DEFAULT_RANK), -k.rank, k.name))


def select(
    spec: KernelSpec,
    environment: Mapping[str, Any],
    kernels: Iterable[Kernel],
    *,
    backend: str | None = None,
    probe: bool = False,
) -> Selection:
    """Choose among ``kernels``, given in rank order, for ``spec`` in an environment's facts.

    ``backend``: consider only this backend's. ``probe``: let each otherwise admissible kernel try itself.
    """
    facts = {**spec.flat, **environment}
    chosen: KernelCandidate | None = None
    trace = []
    for kernel in kernels:
        if kernel.op != spec.op:
            continue
        candidate = _judge(kernel, facts, backend, probe and chosen is None)
        trace.append(candidate)
        if chosen is None and candidate.status != "no":
            chosen = candidate
    if chosen is None:
        return Selection(None, (), tuple(trace))
    return Selection(chosen.kernel, chosen.reasons if chosen.status == "if" else (), tuple(trace))


def _judge(kernel: Kernel, facts: Mapping[str, Any], backend: str | None, probe: bool) -> KernelCandidate:
    verdict = kernel.predicate.test(facts)
    if verdict.status == "no":
        return KernelCandidate(kernel, "no", tuple(str(m) for m in verdict.mismatches), verdict.mismatches)
    if backend is not None and kernel.backend != backend:
        return KernelCandidate(kernel, "no", (f"backend {backend!r} was asked for",))
    if probe and kernel.probe is not None:
        reason = run_probe(kernel.probe)
        if reason is not None:
            return KernelCandidate(kernel, "no", (f"probe: {reason}",))
    return KernelCandidate(kernel, verdict.status, tuple(str(c) for c in verdict.conditions))


def refusal(trace: Iterable[KernelCandidate], spec: KernelSpec, backend: str | None = None) -> dict[str, str]:
    """What of a task kept the first kernel out that says it in facts: ``field``, ``observed`` and ``required`` of an
    error, where no kernel was chosen. ``backend``: the one that was asked for."""
    for candidate in trace:
        for mismatch in candidate.mismatches:
            name = mismatch.field
            observed, required = in_words(name, mismatch.shown), in_words(name, mismatch.required)
            return {"field": name, "observed": observed, "required": required}
    wanted = f"a kernel that computes {spec.op} of {spec.scheme}"
    return {"field": "backend", "observed": backend or "every installed one", "required": wanted}


_probed: dict[str, str | None] = {}


def run_probe(target: str) -> str | None:
    """The probe's answer, asked once a process. A probe that raises is an answer too: the kernel does not work here."""
    if target not in _probed:
        try:
            function: Callable[[], str | None] = load_target(target)
            _probed[target] = function()
        except ConfigError:  # what the user asked for is wrong, which no other kernel makes right
            raise
        except Exception as error:  # a provider may fail in any way; the reason goes into the trace
            _probed[target] = f"{type(error).__name__}: {error}"
    return _probed[target]
