"""Layers of every sort, and what each engine makes of them: what the table of differences is generated from.

The layers are made here, of the args that rules and engines tell apart, so that the table depends on nothing recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product, zip_longest
from typing import Any

from ..registry.args import QuantArgs
from ..registry.domains import Domain
from ..registry.facts import LayerFacts, args_facts
from ..registry.peers.case import Engine, EngineCase, Fault, Seen
from ..registry.peers.compare import decide
from ..registry.peers.facts import Sight, View
from ..registry.peers.parts import both
from ..registry.predicates import Box
from ..registry.registry import Registry
from ..registry.values import ABSENT

DEVICES: tuple[tuple[str, Any], ...] = (
    ("cuda", 100),
    ("cuda", 90),
    ("cuda", 89),
    ("cuda", 80),
    ("cuda", 75),
    ("cpu", ABSENT),
)
FORMATS = (
    *("pack-quantized", "int-quantized", "float-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized"),
    *("mxfp8-quantized", "dense"),
)
_BLOCK = {"strategy": "block", "block_structure": (128, 128)}
_NV = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
_MX4 = {"num_bits": 4, "type": "float", "group_size": 32}
_FP8: dict[str, Any] = {"num_bits": 8, "type": "float"}
_TOKEN = {"strategy": "token", "dynamic": True}


def _weights() -> Iterator[dict[str, Any]]:
    for bits in (4, 8, 2, 3, 1):
        for size in (128, 32, -1, 16, None):
            yield {"num_bits": bits, "group_size": size}
            yield {"num_bits": bits, "group_size": size, "symmetric": False}
    for order in ("group", "weight"):
        for size in (128, 32):
            yield {"num_bits": 4, "group_size": size, "actorder": order}
    yield {"num_bits": 4, "group_size": 128, "actorder": "group", "symmetric": False}
    yield {"num_bits": 8, **_BLOCK}
    for more in ({}, {"scale_dtype": "uint8"}):
        yield {"num_bits": 4, "group_size": 128, **more, "dynamic": not more}
        yield {"num_bits": 4, "group_size": 32, "scale_dtype": "uint8"}
        yield {"num_bits": 8, "group_size": -1, "scale_dtype": "uint8"}
        for way in ({"group_size": -1}, {"strategy": "tensor"}, _BLOCK, {"group_size": 32}, {"group_size": 128}):
            yield {**_FP8, **way, **more}
        yield {**_MX4, **more}
        yield {**_NV, **more}
    yield {**_FP8, "group_size": 32, "scale_dtype": "uint8", "dynamic": True}
    yield {**_FP8, "strategy": "block", "block_structure": (64, 128)}
    for way in (
        {"group_size": -1},
        {"strategy": "tensor"},
        _BLOCK,
        {"group_size": 64},
        {"group_size": 128, "symmetric": False},
    ):
        yield {"num_bits": 4, "type": "float", **way}
    yield {**_MX4, "scale_dtype": "bfloat16"}
    yield {**_MX4, "dynamic": True}
    yield {**_NV, "dynamic": "local"}


def _inputs() -> Iterator[dict[str, Any] | None]:
    yield None
    for base in ({"num_bits": 8}, _FP8):
        for symmetric in (True, False):
            yield {**base, **_TOKEN, "symmetric": symmetric}
            yield {**base, "strategy": "tensor", "symmetric": symmetric}
        yield {**base, "strategy": "tensor", "dynamic": True}
        yield {**base, "group_size": 128, "dynamic": True}
        yield {**base, "group_size": 64, "dynamic": True}
        yield {**base, **_TOKEN, "scale_dtype": "uint8"}
        yield {**base, "strategy": "tensor", "scale_dtype": "uint8"}
    yield {"num_bits": 4, **_TOKEN}
    yield {"num_bits": 4, **_TOKEN, "scale_dtype": "uint8"}
    yield {"num_bits": 4, "type": "float", **_TOKEN}
    yield {**_FP8, "group_size": 32, "dynamic": True, "scale_dtype": "uint8"}
    yield {**_MX4, "dynamic": True}
    for dynamic in ("local", True, False):
        yield {**_NV, "dynamic": dynamic}
    yield {**_NV, "dynamic": "local", "scale_dtype": "bfloat16"}


_OUTPUTS = (None, {"num_bits": 8, "strategy": "tensor"}, {"num_bits": 8, "strategy": "tensor", "symmetric": False})


def _args(raw: dict[str, Any] | None) -> QuantArgs | None:
    return None if raw is None else QuantArgs(**raw)


@cache
def _pool(side: str) -> tuple[tuple[QuantArgs | None, dict[str, Any]], ...]:
    """Args of a side with their facts, the usual ones first."""
    raws: dict[str, Iterable[dict[str, Any] | None]] = {"weights": _weights(), "inputs": _inputs(), "outputs": _OUTPUTS}
    return tuple((args, args_facts(side, args)) for args in dict.fromkeys(map(_args, raws[side])))


def _sides(box: Box, side: str) -> list[QuantArgs | None]:
    """The args that the box admits of this side."""
    wanted = [(name, domain) for name, domain in box.fields if name.partition(".")[0] == side]
    return [args for args, facts in _pool(side) if all(facts[name] in domain for name, domain in wanted)]


def _views(kind: str, box: Box) -> Iterator[View]:
    """Layers that lie in the box as far as args and format go, and in its other fields where they can be chosen."""
    domains = box.domains
    cached = kind in ("kv_cache", "attention")
    weights = [None] if cached else [args for args in _sides(box, "weights") if args is not None]
    formats = (None,) if cached else tuple(f for f in FORMATS if _admits(domains, "format", f))
    inputs = [*(args for args in _sides(box, "inputs") if not cached or args is not None), *([_HEAD] if cached else [])]
    for given, out in product(inputs, [None] if cached else _sides(box, "outputs")):
        for weight, form in product(weights, formats):
            facts = LayerFacts(kind, form, weight, given, out)
            chosen = {
                name: value
                for name, values in _CHOICES.items()
                for value in values
                if name in domains and value in domains[name]
            }
            plain = replace(Sight.of(facts), target="name")
            yield View(facts, replace(plain, **chosen))


def _admits(domains: Mapping[str, Domain], name: str, value: Any) -> bool:
    return name not in domains or value in domains[name]


#: what else a layer may have that an engine looks at; where a case does not ask for it, the layer has what is usual
_CHOICES: dict[str, tuple[Any, ...]] = {
    "top_format": ("pack-quantized", "mxfp4-pack-quantized"),
    "target": ("class", "name"),
    "preset": (True,),
    "unknown_args": (True,),
    "sparse_targets": (True,),
    "sparse_24": (True,),
    "linear_entry": ("other", "absent"),
    "linear_mxfp4": (True,),
    "strategy_given": (False, True),
    "attention_group": (True,),
    "online_transforms": (True,),
}
_HEAD = QuantArgs(**_FP8, strategy="attn_head")
#: layers tried for one difference before it is said that none has it; and for an error
_TRIES, _ERROR_TRIES = 1500, 300
#: of those, how many for one that has a scheme of ours
_WITH_SCHEME = 200


@dataclass(frozen=True)
class Difference:
    """One thing that an engine does otherwise: its case, the fault (``None``: it raises), an example, and our answer.

    ``where``: the newest device on which that is so. ``ours``: the name of our scheme, or ``None``.
    """

    engine: Engine
    kind: str
    case: EngineCase
    fault: Fault | None
    example: View
    where: str
    ours: str | None


def differences(engine: Engine, kind: str, registry: Registry) -> Iterator[Difference]:
    """In the engine's order: every fault of every case; and every error for layers that we have a scheme for.

    What stands among the cases of linear layers already is left out of other kinds.
    """
    told = set() if kind == "linear" else {id(case) for case in engine.chains["linear"]}
    for case in engine.chains[kind]:
        if id(case) in told:
            continue
        for fault in case.faults if case.runs is not None else (None,):
            found = _example(engine, kind, case, fault, registry)
            if found is not None:
                yield Difference(engine, kind, case, fault, *found)


def _example(
    engine: Engine, kind: str, case: EngineCase, fault: Fault | None, registry: Registry
) -> tuple[View, str, str | None] | None:
    predicate = case.predicate if fault is None else both(case.predicate, fault.predicate)
    first: tuple[View, str, None] | None = None
    tries = _TRIES if fault is not None else _ERROR_TRIES
    for number, view in zip(range(tries), _each(kind, predicate), strict=False):
        if first is not None and number > _WITH_SCHEME:
            break
        where = _where(engine, view, case, fault)
        if where is None:
            continue
        rule = registry.rules.winner(view.layer)
        if rule is not None:
            return view, where, registry.scheme_class(rule).name
        first = first or (view, where, None)
    return first if fault is not None else None


def _each(kind: str, predicate: Seen) -> Iterator[View]:
    """The layers of all boxes in turn, so that no box is starved by a large one."""
    todo = [_views(kind, box) for box in predicate.boxes if not box.empty]
    for round_ in zip_longest(*todo):
        yield from (view for view in round_ if view is not None)


def _where(engine: Engine, view: View, case: EngineCase, fault: Fault | None) -> str | None:
    """The newest device on which the case decides and the fault holds; for an error, no device may run the layer."""
    found = None
    for device, capability in DEVICES:
        if device not in engine.devices:
            continue
        for settings in engine.settings:
            met = decide(engine, view, device, capability, settings)
            if fault is None and met is not None and met.runs is not None:
                return None
            if found is None and met is case:
                if fault is None or fault.predicate.holds(view.on(device, capability, settings)):
                    found = device if capability is ABSENT else f"sm{capability}"
    return found
