"""Which scheme and kernel each preset of compressed-tensors gets, on each device family."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..registry.args import QuantArgs
from ..registry.config_reading import Notes, read_args
from ..registry.environment import Environment
from ..registry.facts import LayerFacts
from ..registry.presets import PRESETS
from ..registry.registry import Registry

KINDS = ("linear", "moe", "embedding", "lm_head")
DEVICES = ("cpu", "cuda:sm75", "cuda:sm80", "cuda:sm89", "cuda:sm90", "cuda:sm100", "cuda:sm120", "rocm:gfx942")
DTYPE = "bfloat16"


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
    environments = [Environment.detect(device) for device in DEVICES]
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
            scheme = registry.scheme_class(rule)(facts)
            if weights is None:
                kernels: tuple[str | None, ...] = ("torch",) * len(DEVICES)
            else:
                spec = scheme.kernel_spec(None, DTYPE)
                chosen = [registry.select(spec, environment).kernel for environment in environments]
                kernels = tuple(kernel.name if kernel is not None else None for kernel in chosen)
            yield Cover(name, kind, form, rule.name, scheme.name, kernels)


def written_format(weights: QuantArgs | None, inputs: QuantArgs | None) -> str:
    """The format in which compressed-tensors 0.20 stores such a group of linear layers.

    Source: ``infer_module_format`` (``compressors/format.py``), which asks the compressors in a fixed order.
    """
    if weights is None:
        return "dense"
    if weights.type == "int":
        return "int-quantized" if inputs is not None else "pack-quantized"
    kind = (weights.num_bits, weights.group_size)
    if kind in ((4, 32), (6, 32)):
        return f"mxfp{weights.num_bits}-pack-quantized"
    if kind == (8, 32) and weights.scale_dtype == "uint8":
        return "mxfp8-quantized"
    if kind == (4, 16):
        return "nvfp4-pack-quantized"
    return "float-quantized" if inputs is not None else "naive-quantized"


def coverage_rows(registry: Registry) -> list[list[str | tuple[str, str]]]:
    """A table; kinds of a preset that fare alike share a line."""
    rows: list[list[str | tuple[str, str]]] = [[(h, "bold") for h in ("preset", "kinds", "format", "scheme", *DEVICES)]]
    merged: dict[tuple[Any, ...], list[str]] = {}
    for cover in covers(registry):
        merged.setdefault((cover.preset, cover.format, cover.scheme, cover.kernels), []).append(cover.kind)
    for (preset, form, scheme, kernels), kinds in merged.items():
        answer: Sequence[str | tuple[str, str]] = [name or ("-", "red") for name in kernels] if scheme else []
        rows.append([preset, ", ".join(kinds), form, scheme or ("no rule", "red"), *answer])
    return rows


def coverage_json(registry: Registry) -> dict[str, Any]:
    return {
        "version": 1,
        "dtype": DTYPE,
        "coverage": [
            {
                **{"preset": c.preset, "kind": c.kind, "format": c.format, "rule": c.rule, "scheme": c.scheme},
                "kernels": dict(zip(DEVICES, c.kernels, strict=True)),
            }
            for c in covers(registry)
        ],
    }
