"""One layer in full, and why a backend was not chosen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .args_text import layer_text
from .group_text import failure_sections, name_section, origin, origin_section, ranked_section
from .grouping import Group, groups
from .kernel_text import STATUS_STYLES, kernel_section
from .output import Line
from .page import Page, Row, Section, fit, said, whole

if TYPE_CHECKING:
    from ..registry.plan import Plan, Resolution


def layer_lines(layer: Resolution) -> Iterator[Line]:
    """Everything known about a layer: args, tensors, every rule's and every kernel's answer."""
    shape = f" · N {layer.shape.n}, K {layer.shape.k}" if layer.shape is not None else " · shape unknown"
    inferred = f" ({layer.inferred})" if layer.inferred else ""
    yield [(layer.name, "bold cyan"), f" · {layer.kind}{inferred}{shape}"]
    group = Group.of(layer)
    dtype = layer.spec.dtype if layer.spec is not None else None
    yield from whole(
        [
            *said("args", layer_text(layer.weights, layer.inputs, layer.outputs, dtype) or "unquantized"),
            *said("format", *filter(None, [layer.format])),
            *origin_section(group),
            *said("tensors", *_tensor_texts(layer)),
            *said("scheme", layer.scheme or "none", style="bold"),
            *_rules_section(layer),
            *kernel_section(group.kernels(), 1),
            *ranked_section(layer),
            *said("applies", *layer.transforms),
            *said("deviates", *layer.deviations),
            *said("same as", *(f"{engine}: {', '.join(classes)}" for engine, classes in layer.equivalents.items())),
            *said("differs", *(f"{engine}: {reason}" for engine, reason in layer.differs.items())),
            *failure_sections(group),
        ]
    )


def _tensor_texts(layer: Resolution) -> list[str]:
    size = max((len(name) for name in layer.tensors), default=0)
    return [f"{name:<{size}}  {info.dtype:<7} {list(info.shape)}" for name, info in layer.tensors.items()]


def _rules_section(layer: Resolution) -> list[Section]:
    """Every rule's answer, the accepted one first, then the nearest."""
    trace = layer.trace.rules
    size = max((len(candidate.rule.name) for candidate in trace), default=0)
    rows = []
    for candidate in trace:
        status = "yes" if candidate.accepted else "no"
        reason = str(candidate).partition(": ")[2] if status == "no" else origin(candidate.rule)
        lead = f"{candidate.rule.name:<{size}} {status:<3}  "
        rows.append(Row(lead + reason, STATUS_STYLES[status], hang=len(lead)))
    return [Section("rules", rows)] if rows else []


def why_not_lines(plan: Plan, backend: str, page: Page) -> Iterator[Line]:
    """For each group of layers, what kept this backend's kernels from being chosen."""
    for group in groups(plan.layers):
        layer, count = group.first, len(group)
        dtype = layer.spec.dtype if layer.spec is not None else None
        args = layer_text(layer.weights, layer.inputs, layer.outputs, dtype)
        head = f"{count} layer{'s' if count != 1 else ''}   {layer.scheme or 'no scheme'}"
        line: Line = [(head, "bold"), f"   {args}" if args else ""]
        yield line
        own = [answer for answer in group.kernels() if answer.kernel.backend == backend]
        kernels = kernel_section(own, count, layer.kernel) or said("kernels", _no_candidate(layer, backend))
        yield from fit([*name_section(group, page.width), *kernels], page, taken=page.height(line))


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
