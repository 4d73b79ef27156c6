"""Our scheme for a layer beside what each engine runs, for one device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..values import ABSENT
from .case import Chain, Engine, EngineCase
from .facts import View, capability_of


@dataclass(frozen=True)
class Opinion:
    """What an engine makes of a layer that it does not refuse.

    ``classes``: what runs it, several where a setting decides. ``same_as``: our schemes with the same contract. ``wrong``:
    what it computes otherwise than the args say. ``where``: the device that this holds for, where the engine refuses
    the layer, or nothing is known of it, on the one that was asked about.
    """

    engine: Engine
    classes: tuple[str, ...]
    same_as: frozenset[str]
    wrong: tuple[str, ...] = ()
    where: str = ""

    @property
    def reason(self) -> str:
        """``"runs CompressedTensorsW8A16Fp8, which leaves the inputs unquantized"``."""
        text = f"runs {' or '.join(self.classes)}"
        if self.wrong:
            text += f", which {_listed(self.wrong)}"
        return f"{text} (on {self.where})" if self.where else text

    @property
    def sentence(self) -> str:
        """The same of a layer for which there is no scheme to compare with."""
        if self.wrong:
            return f"{self.engine.label} {self.reason}"
        return f"{self.engine.label} {self.reason} as the args say"


@cache
def engines() -> tuple[Engine, ...]:
    """All engines. Built at first use: most of what imports this package never asks."""
    from .sglang import SGLANG
    from .vllm import VLLM

    return (VLLM, SGLANG)


@cache
def _chain(name: str, kind: str) -> Chain:
    engine = next(e for e in engines() if e.name == name)
    return Chain(engine.chains.get(kind, ()))


_judged: dict[tuple[Any, ...], Opinion | None] = {}


def judge(engine: Engine, view: View, device: str, arch: str) -> Opinion | None:
    """What ``engine`` makes of the layer on the device, or ``None`` where it refuses it on every device.

    An engine that refuses a layer for the sake of this device only is judged by the newest device that runs it: which
    class has the same contract does not hang on that.
    """
    key = (engine.name, view, view.flat["unreadable_float"], device, arch)
    if key not in _judged:
        _judged[key] = _judge(engine, view, device, arch)
    return _judged[key]


def _judge(engine: Engine, view: View, device: str, arch: str) -> Opinion | None:
    capability = capability_of(device, arch)
    known = device in engine.devices and (device != "cuda" or capability is not ABSENT)
    opinion = _on(engine, view, device, capability, "") if known else None
    for newest in engine.capabilities:
        if opinion is not None:
            break
        opinion = _on(engine, view, "cuda", newest, f"sm{newest}")
    return opinion


def decide(engine: Engine, view: View, device: str, capability: Any, settings: Mapping[str, str]) -> EngineCase | None:
    """The case that decides: one device, one setting. ``None`` where the engine has no chain for the kind of layer."""
    return _chain(engine.name, view.layer.kind).first(view.on(device, capability, settings))


def wrong(engine: Engine, case: EngineCase, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """What the engine computes otherwise than the args say, once each."""
    faults = (*case.faults, *engine.faults)
    return tuple(dict.fromkeys(f.does for f in faults if f.predicate.holds(facts)))


def _on(engine: Engine, view: View, device: str, capability: Any, where: str) -> Opinion | None:
    found: list[tuple[EngineCase, tuple[str, ...]]] = []
    for settings in engine.settings:
        case = decide(engine, view, device, capability, settings)
        if case is not None and case.runs is not None:
            found.append((case, wrong(engine, case, view.on(device, capability, settings))))
    if not found:
        return None
    # One setting that goes wrong is what has to be told, and the default before any other.
    worst = next(((case, faults) for case, faults in found if faults), None)
    if worst is not None:
        case, faults = worst
        return Opinion(engine, (str(case.runs),), frozenset(), faults, where)
    classes = tuple(dict.fromkeys(str(case.runs) for case, _ in found))
    return Opinion(engine, classes, frozenset.intersection(*(frozenset(case.same_as) for case, _ in found)), (), where)


def compare(view: View, scheme: str, device: str, arch: str) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """``(equivalents, differs)`` of ``scheme``, the name of ours for the layer: each engine stands in one or neither."""
    equivalents: dict[str, tuple[str, ...]] = {}
    differs: dict[str, str] = {}
    for engine in engines():
        opinion = judge(engine, view, device, arch)
        if opinion is None:
            continue
        if opinion.wrong:
            differs[engine.name] = opinion.reason
        elif scheme in opinion.same_as:
            equivalents[engine.name] = opinion.classes
        elif scheme in _all_schemes():
            differs[engine.name] = (
                f"{opinion.reason}, the same as {_listed(sorted(opinion.same_as))} and not as {scheme}"
            )
    return equivalents, differs


def sentences(view: View, device: str, arch: str) -> dict[str, str]:
    """For a layer without a scheme of ours: what each engine that does not refuse it would run, and what is wrong."""
    opinions = ((engine, judge(engine, view, device, arch)) for engine in engines())
    return {engine.name: opinion.sentence for engine, opinion in opinions if opinion is not None}


@cache
def _all_schemes() -> frozenset[str]:
    """Schemes that some engine has; what a plugin's own scheme computes is not known here."""
    return frozenset(
        name for engine in engines() for cases in engine.chains.values() for c in cases for name in c.same_as
    )


def _listed(parts: Iterable[str]) -> str:
    words = list(parts)
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
