"""How vLLM 0.32.0 and SGLang 0.5.23 find the config group of a layer: section (b) of the facts, for tests only.

A regular expression is anchored at the start. ``packed``: fused name to the names of its members.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Packed = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Place:
    """What an engine makes of a name: ignored, a target, neither (unquantized), or an error."""

    ignored: bool = False
    target: str | None = None
    error: str = ""


def _fits(entry: str, name: str) -> bool:
    return re.match(entry[3:], name) is not None if entry.startswith("re:") else entry == name


def _by_name(targets: Sequence[str], name: str) -> str | None:
    return next((target for target in targets if _fits(target, name)), None)


def _by_class(targets: Sequence[str], cls: str) -> str | None:
    for target in targets:
        if target.startswith("re:") and re.match(target[3:], cls):
            return target
        if target.lower() in cls.lower():
            return target
    return None


def _by_members(targets: Sequence[str], name: str, packed: Packed) -> str | None:
    """The first member's target, where every member has one."""
    key = next((key for key in packed if name.endswith(key)), None)
    if key is None:
        return None
    found = [_by_name(targets, name.replace(key, member)) for member in packed[key]]
    return found[0] if all(target is not None for target in found) else None


def vllm(targets: Sequence[str], ignore: Sequence[str], name: str | None, cls: str, packed: Packed) -> Place:
    if name is not None:
        last = name.rpartition(".")[2]
        if any(_fits(entry, name) for entry in ignore):
            return Place(ignored=True)
        if last in packed:
            members = [name.replace(last, member) for member in packed[last]]
            ignored = [any(_fits(entry, member) for entry in ignore) for member in members]
            if all(ignored):
                return Place(ignored=True)
            if any(ignored):
                return Place(error="ValueError")
        target = _by_name(targets, name) or _by_members(targets, name, packed)
        if target is not None:
            return Place(target=target)
    return Place(target=_by_class(targets, cls))


def _sglang_ignores(ignore: Sequence[str], name: str) -> bool:
    return any(_fits(entry, name) or (not entry.startswith("re:") and name.endswith("." + entry)) for entry in ignore)


def sglang(targets: Sequence[str], ignore: Sequence[str], name: str, cls: str, packed: Packed) -> Place:
    last = name.rpartition(".")[2]
    if last in packed and name not in ignore:
        ignored = [_sglang_ignores(ignore, name.replace(last, member)) for member in packed[last]]
        if all(ignored):
            return Place(ignored=True)
        if any(ignored):
            return Place(error="ValueError")
    elif _sglang_ignores(ignore, name):
        return Place(ignored=True)
    if cls == "ParallelLMHead":
        named = [t for t in targets if _fits(t, name) or name.endswith("." + t)]
        return Place(target=named[0] if named else None)
    target = _by_name(targets, name) or _by_class(targets, cls) or _by_members(targets, name, packed)
    return Place(target=target) if target is not None else Place(error="ValueError")


def sglang_experts(groups: Mapping[str, str], ignore: Sequence[str], prefix: str, packed: Packed) -> Place:
    """Three names of expert 0 decide, if their groups agree. ``groups``: target to group.

    ``Linear`` stands for FusedMoE where that is no target, and is then the target that was found.
    """
    known = dict(groups)
    if "Linear" in known:
        known.setdefault("FusedMoE", known["Linear"])
    names = [f"{prefix}.0.{last}" for last in ("gate_proj", "up_proj", "down_proj")]
    places = [sglang([*known], ignore, name, "FusedMoE", packed) for name in names]
    errors = [place for place in places if place.error]
    if errors or len({(place.ignored, known.get(place.target or "")) for place in places}) > 1:
        return errors[0] if errors else Place(error="ValueError")
    first = places[0]
    return Place(target="Linear") if first.target == "FusedMoE" and "FusedMoE" not in groups else first
