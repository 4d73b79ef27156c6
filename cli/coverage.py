"""``quantdispatch rules --coverage``: what has a scheme and a kernel, of the legal args and of the presets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..registry.analysis.choice import DEVICES, DTYPE, Choice
from ..registry.analysis.coverage import Share, coverage, written_format
from ..registry.analysis.findings import words
from ..registry.config_reading import Notes, read_args
from ..registry.facts import LayerFacts
from ..registry.presets import PRESETS
from ..registry.registry import Registry
from .output import Line, Output, Segment

KINDS = ("linear", "moe", "embedding", "lm_head")


@dataclass(frozen=True)
class Cover:
    """One preset for one kind of layer: the rule and scheme (or ``None``), and the kernel for each of ``DEVICES``."""

    preset: str
    kind: str
    format: str
    rule: str | None
    scheme: str | None
    kernels: tuple[str | None, ...]


def covers(registry: Registry) -> Iterator[Cover]:
    """One entry for every preset and layer kind. Shapes are left open, so a kernel may stand under conditions."""
    choice = Choice(registry)
    for name, group in PRESETS.items():
        weights, inputs = (
            read_args(group.get(side), f"{name}.{side}", Notes()) for side in ("weights", "input_activations")
        )
        form = written_format(weights, inputs)
        for kind in KINDS:
            facts = LayerFacts(kind, form, weights, inputs)
            rule = registry.resolve(facts).rule
            if rule is None:
                yield Cover(name, kind, form, None, None, (None,) * len(DEVICES))
                continue
            scheme, chosen = choice.of_rule(rule, facts)
            kernels = tuple(kernel.name if kernel is not None else None for kernel in chosen.values())
            if weights is None:
                kernels = ("torch",) * len(DEVICES)
            yield Cover(name, kind, form, rule.name, scheme, kernels)


def show_coverage(registry: Registry, output: Output) -> None:
    """Two tables, the legal args and the presets, and layers that have no scheme."""
    shares = coverage(registry)
    output.line(
        ("legal args", "bold"), "   share of the layers that have a scheme, and of those, that have a fast kernel"
    )
    output.table(_share_rows(shares))
    output.line()
    output.lines(_without(shares))
    output.line()
    output.line(("presets", "bold"), "   in the format that compressed-tensors writes")
    output.table(_preset_rows(registry))


def coverage_json(registry: Registry) -> dict[str, Any]:
    """Everything, uncollapsed: ``legal`` an entry a share, ``coverage`` an entry a preset and kind."""
    return {
        "version": 1,
        "dtype": DTYPE,
        "devices": list(DEVICES),
        "legal": [share.to_json() for share in coverage(registry)],
        "coverage": [
            {
                **{"preset": c.preset, "kind": c.kind, "format": c.format, "rule": c.rule, "scheme": c.scheme},
                "kernels": dict(zip(DEVICES, c.kernels, strict=True)),
            }
            for c in covers(registry)
        ],
    }


# --------------------------------------------------------------------------------------------------------- legal args


def _share_rows(shares: Sequence[Share]) -> Iterator[list[Segment]]:
    """Weights that fare alike share a line; what has no scheme at all is left to :func:`_without`."""
    yield [(head, "bold") for head in ("weights", "inputs", "outputs", "layers", "scheme", *DEVICES)]
    merged: dict[tuple[Any, ...], list[Share]] = {}
    for share in shares:
        if share.schemes:
            key = (share.inputs, share.outputs, share.layers, share.schemes, *share.fast.values(), *share.any.values())
            merged.setdefault(key, []).append(share)
    for group in merged.values():
        share = group[0]
        yield [
            _labels([s.weights for s in group]),
            share.inputs,
            share.outputs,
            f"{share.layers:,}",
            _percent(share.schemes, share.layers),
            *(_device_cell(share, device) for device in DEVICES),
        ]


def _device_cell(share: Share, device: str) -> Segment:
    if share.fast[device]:
        return _percent(share.fast[device], share.schemes)
    return ("slow", "dim") if share.any[device] else ("-", "red")


def _percent(part: int, whole: int) -> str:
    """``100%`` and ``0%`` mean all and none."""
    percent = 100 * part / whole
    return f"{percent:.0f}%" if part in (0, whole) else f"{min(max(percent, 0.1), 99.9):.{1 if percent < 10 else 0}f}%"


def _labels(names: Sequence[str]) -> str:
    """``["int2", "int3", "int4", "fp8"]`` as ``"int2-4, fp8"``."""
    runs: list[list[str]] = []
    for name in names:
        before = runs[-1][-1] if runs else ""
        if name.startswith("int") and before.startswith("int") and int(name[3:]) == int(before[3:]) + 1:
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1][3:]}" for run in runs)


def _inputs(label: str) -> str:
    return "unquantized inputs" if label == "none" else f"{label} inputs"


def _without(shares: Sequence[Share], most: int = 3) -> Iterator[Line]:
    """Parts in which no layer has a scheme, and layers of parts in which only some have."""
    missing: dict[str, list[str]] = {}
    for share in shares:
        if not share.schemes:
            said = "quantized outputs" if share.outputs == "quantized" else _inputs(share.inputs)
            missing.setdefault(share.weights, []).append(said)
    alike: dict[tuple[str, ...], list[str]] = {}
    for weights, parts in missing.items():
        alike.setdefault(tuple(parts), []).append(weights)
    for key, names in alike.items():
        yield [("no scheme  ", "red"), f"{_labels(names)} with {', '.join(key)}"]
    partly = [share for share in shares if share.schemes and share.without]
    chosen = [partly[i * len(partly) // most] for i in range(min(most, len(partly)))]
    for facts in dict.fromkeys(share.without[0] for share in chosen):
        yield [("e.g.       ", "yellow"), words(facts)]


# ------------------------------------------------------------------------------------------------------------ presets


def _preset_rows(registry: Registry) -> Iterator[list[Segment]]:
    """Kinds of a preset that fare alike share a line."""
    yield [(head, "bold") for head in ("preset", "kinds", "format", "scheme", *DEVICES)]
    merged: dict[tuple[Any, ...], list[str]] = {}
    for cover in covers(registry):
        merged.setdefault((cover.preset, cover.format, cover.scheme, cover.kernels), []).append(cover.kind)
    for (preset, form, scheme, kernels), kinds in merged.items():
        answer: Sequence[Segment] = [name or ("-", "red") for name in kernels] if scheme else []
        yield [preset, ", ".join(kinds), form, scheme or ("no rule", "red"), *answer]
