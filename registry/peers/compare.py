"""Our scheme for a layer beside what each engine runs, for one device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..bounded import Bounded
from ..values import ABSENT
from .case import Chain, Engine, EngineCase
from .facts import View, capability_of


@dataclass(frozen=True)
class Opinion:
    """What an engine makes of a layer that it does not refuse.

    ``sound``: its classes that compute what the args say, ``same_as``: our schemes with the same contract.
    ``faulty``: its classes that compute something else, and ``wrong``: what. Several classes where a setting decides;
    ``setting``: under which, where the defaults do not. ``where``: the device that this holds for, where the engine
    refuses the layer, or nothing is known of it, on the one that was asked about.
    """

    engine: Engine
    sound: tuple[str, ...]
    same_as: frozenset[str]
    faulty: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    setting: str = ""
    where: str = ""

    @property
    def reason(self) -> str:
        """``"runs CompressedTensorsW8A16Fp8, which leaves the inputs unquantized"``."""
        sound, faulty = " or ".join(self.sound), " or ".join(self.faulty)
        place = f" (on {self.where})" if self.where else ""
        given = f"with {self.setting} " if self.setting else ""
        if not faulty:
            return f"{given}runs {sound}{place}"
        wrong = f"{faulty}, which {'; '.join(self.wrong)}{place}"
        if not sound:
            return f"{given}runs {wrong}"
        return f"runs {sound}, but {given}{wrong}" if given else f"runs {wrong}; with other settings {sound}"

    @property
    def sentence(self) -> str:
        """The same of a layer for which there is no scheme to compare with."""
        return f"{self.engine.label} {self.reason}" + ("" if self.wrong else ", as the args say")


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


_judged: dict[tuple[Any, ...], Opinion | None] = Bounded(8192)


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
    found: list[tuple[str, EngineCase, tuple[str, ...]]] = []
    for settings in engine.settings:
        case = decide(engine, view, device, capability, settings)
        if case is not None and case.runs is not None:
            faults = wrong(engine, case, view.on(device, capability, settings))
            found.append((_changed(settings, engine.settings[0]), case, faults))
    if not found:
        return None
    same_as = frozenset.intersection(*(frozenset(case.same_as) for _, case, _ in found))
    bad = [(setting, str(case.runs), faults) for setting, case, faults in found if faults]
    return Opinion(
        engine,
        sound=tuple(dict.fromkeys(str(case.runs) for _, case, faults in found if not faults)),
        same_as=same_as,
        faulty=tuple(dict.fromkeys(runs for _, runs, _ in bad)),
        wrong=tuple(dict.fromkeys(fault for *_, faults in bad for fault in faults)),
        setting=bad[0][0] if bad else found[0][0],
        where=where,
    )


def _changed(settings: Mapping[str, str], defaults: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items() if value != defaults[name])


def compare(view: View, scheme: str, device: str, arch: str) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """``(equivalents, differs)`` of ``scheme``, our name for the layer's: each engine stands in one or in neither."""
    equivalents: dict[str, tuple[str, ...]] = {}
    differs: dict[str, str] = {}
    for engine in engines():
        opinion = judge(engine, view, device, arch)
        if opinion is None:
            continue
        if opinion.wrong:
            differs[engine.name] = opinion.reason
        elif scheme in opinion.same_as:
            equivalents[engine.name] = opinion.sound
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
