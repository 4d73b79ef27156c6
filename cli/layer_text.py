"""One layer in full, and why a backend was not chosen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .args_text import layer_text
from .explain_text import (
    STATUS_STYLES,
    failure_rows,
    kernel_rows,
    labelled,
    name_lines,
    origin,
    origin_rows,
    ranked_rows,
)
from .grouping import Group, groups
from .output import Line

if TYPE_CHECKING:
    from ..registry.plan import Plan, Resolution


def layer_lines(layer: Resolution) -> Iterator[Line]:
    """Everything known about a layer: args, tensors, every rule's and every kernel's answer."""
    shape = f" · N {layer.shape.n}, K {layer.shape.k}" if layer.shape is not None else " · shape unknown"
    inferred = f" ({layer.inferred})" if layer.inferred else ""
    yield [(layer.name, "bold cyan"), f" · {layer.kind}{inferred}{shape}"]
    group = Group.of(layer)
    dtype = layer.spec.dtype if layer.spec is not None else None
    rows = [("args", layer_text(layer.weights, layer.inputs, layer.outputs, dtype) or "unquantized", "")]
    rows += [("format", layer.format, "")] if layer.format else []
    rows += origin_rows(group)
    rows += _tensor_rows(layer)
    rows += [("scheme", layer.scheme or "none", "bold")]
    rows += _rule_rows(layer)
    rows += kernel_rows(group.kernels(), 1)
    rows += ranked_rows(layer)
    rows += [("applies", text, "") for text in layer.transforms]
    rows += [("deviates", text, "") for text in layer.deviations]
    rows += [("same as", f"{engine}: {', '.join(classes)}", "") for engine, classes in layer.equivalents.items()]
    rows += [("differs", f"{engine}: {reason}", "") for engine, reason in layer.differs.items()]
    rows += failure_rows(layer)
    yield from labelled(rows)


def _tensor_rows(layer: Resolution) -> list[tuple[str, str, str]]:
    size = max((len(name) for name in layer.tensors), default=0)
    return [
        ("tensors" if i == 0 else "", f"{name:<{size}}  {info.dtype:<7} {list(info.shape)}", "")
        for i, (name, info) in enumerate(layer.tensors.items())
    ]


def _rule_rows(layer: Resolution) -> list[tuple[str, str, str]]:
    """Every rule's answer, the accepted one first, then the nearest."""
    trace = layer.trace.rules
    size = max((len(candidate.rule.name) for candidate in trace), default=0)
    rows = []
    for i, candidate in enumerate(trace):
        status = "yes" if candidate.accepted else "no"
        reason = str(candidate).partition(": ")[2] if status == "no" else origin(candidate.rule)
        text = f"{candidate.rule.name:<{size}} {status:<3}  {reason}"
        rows.append(("rules" if i == 0 else "", text, STATUS_STYLES[status]))
    return rows


def why_not_lines(plan: Plan, backend: str, width: int) -> Iterator[Line]:
    """For each group of layers, what kept this backend's kernels from being chosen."""
    for group in groups(plan.layers):
        layer, count = group.first, len(group)
        dtype = layer.spec.dtype if layer.spec is not None else None
        args = layer_text(layer.weights, layer.inputs, layer.outputs, dtype)
        head = f"{count} layer{'s' if count != 1 else ''}   {layer.scheme or 'no scheme'}"
        yield [(head, "bold"), f"   {args}" if args else ""]
        yield from name_lines(group, width)
        rows = kernel_rows([a for a in group.kernels() if a.kernel.backend == backend], count, layer.kernel)
        yield from labelled(rows or [("kernels", _no_candidate(layer, backend), "")])


def _no_candidate(layer: Resolution, backend: str) -> str:
    if layer.scheme is None:
        return "none was asked: no rule gives these layers a scheme"
    if layer.selection is None:
        return f"none was asked: {layer.scheme} layers run as they are"
    op = f" for {layer.spec.op}" if layer.spec is not None else ""
    return f"{backend} has no kernel{op}"


def why_not_json(plan: Plan, backend: str) -> list[dict[str, object]]:
    """One entry a layer and kernel of ``backend``."""
    return [
        {
            "layer": layer.name,
            "kernel": candidate.kernel.name,
            "status": candidate.status,
            "reasons": list(candidate.reasons),
            "chosen": candidate.kernel.name == layer.kernel,
        }
        for layer in plan.layers.values()
        for candidate in (layer.selection.trace if layer.selection is not None else ())
        if candidate.kernel.backend == backend
    ]
