"""The page of what engines do otherwise, from the cases of :mod:`..registry.peers`."""

from __future__ import annotations

from collections.abc import Iterator

from ..registry.facts import SIDES
from ..registry.known_plugins import KNOWN_PLUGINS
from ..registry.peers.case import Engine
from ..registry.peers.compare import engines
from ..registry.peers.targets import TARGET_DIFFERENCES
from ..registry.registry import Registry
from .engine_survey import Difference, differences

KINDS = {
    "linear": "Linear layers",
    "moe": "Routed experts",
    "lm_head": "Heads",
    "embedding": "Embeddings",
    "kv_cache": "The key and value cache",
    "attention": "Attention's own inputs",
}


def engines_page(registry: Registry) -> Iterator[str]:
    names = " and ".join(engine.label for engine in engines())
    yield from (
        "# Engine differences",
        "",
        f"What {names} do with a compressed-tensors checkpoint, where it is not what the checkpoint says.",
        "The lists are those of [`registry/peers`](../registry/peers), which are compared with recorded decisions of",
        "the engines: the same cases, in the engines' order. `plan` and `explain` report them for each layer as",
        "`equivalents` and `differs`; where no rule of ours accepts a layer, its error says what an engine would run.",
        "",
        "An engine that a device is too old or too small for is judged by the newest device that runs the layer.",
    )
    for engine in engines():
        yield from ("", f"## {engine.label}", "")
        if engine.faults:
            yield from (f"Whatever it runs: {'; '.join(fault.does for fault in engine.faults)}.", "")
        if len(engine.settings) > 1:
            changed = [_settings(engine, settings) for settings in engine.settings[1:]]
            yield from (f"Other classes may run with {', '.join(changed)}.", "")
        yield from _same(engine)
        for kind in engine.chains:
            found = list(differences(engine, kind, registry))
            yield from _wrong(engine, kind, [d for d in found if d.fault is not None])
            yield from _refused(engine, kind, [d for d in found if d.fault is None])
    yield from _targets()
    yield from _plugins()


def _settings(engine: Engine, settings: object) -> str:
    assert isinstance(settings, dict)
    return ", ".join(f"`{name}={value}`" for name, value in settings.items() if value != engine.settings[0][name])


def _same(engine: Engine) -> Iterator[str]:
    """Classes with the contract of a scheme, where nothing below applies."""
    yield from ("### The same numbers", "", f"| scheme | {engine.label} |", "|---|---|")
    names: dict[str, dict[str, None]] = {}
    for cases in engine.chains.values():
        for case in cases:
            for scheme in case.same_as:
                names.setdefault(scheme, {})[f"`{case.runs}`"] = None
    for scheme in sorted(names):
        yield f"| `{scheme}` | {', '.join(names[scheme])} |"


def _wrong(engine: Engine, kind: str, found: list[Difference]) -> Iterator[str]:
    if not found:
        return
    yield from ("", f"### {KINDS[kind]}: other numbers", "")
    if kind == "lm_head":
        yield from ("As linear layers, and besides:", "")
    yield from (f"| input | {engine.label} runs | which | for example | here |", "|---|---|---|---|---|")
    for d in found:
        assert d.fault is not None
        yield f"| {d.case.name} | `{d.case.runs}` | {d.fault.does} | {_example(d)} | {_ours(d)} |"


def _refused(engine: Engine, kind: str, found: list[Difference]) -> Iterator[str]:
    if not found:
        return
    yield from ("", f"### {KINDS[kind]}: refused", "")
    yield from (f"| input | {engine.label} raises | for example | here |", "|---|---|---|---|")
    for d in found:
        yield f"| {d.case.name} | {d.case.error} | {_example(d)} | {_ours(d)} |"


def _example(d: Difference) -> str:
    facts = d.example.layer
    words = [f"{side} {args.describe()}" for side in SIDES if (args := getattr(facts, side)) is not None]
    form = d.example.sight.format
    return "; ".join([*words, *([form] if form else []), d.where])


def _ours(d: Difference) -> str:
    return f"`{d.ours}`" if d.ours is not None else "NoSchemeFound"


def _targets() -> Iterator[str]:
    yield from ("", "## Targets and ignore lists", "", "| input | engines | here |", "|---|---|---|")
    labels = {engine.name: engine.label for engine in engines()}
    for difference in TARGET_DIFFERENCES:
        texts = dict.fromkeys(difference.engines.values())
        parts = [
            f"{', '.join(labels[n] for n, t in difference.engines.items() if t == text)}: {text}" for text in texts
        ]
        yield f"| {difference.input} | {'<br>'.join(parts)} | {difference.ours} |"


def _plugins() -> Iterator[str]:
    yield from ("", "## What a plugin adds", "", "| layers | install |", "|---|---|")
    for plugin in KNOWN_PLUGINS:
        yield f"| {plugin.brings} | `pip install {plugin.distribution}` |"
