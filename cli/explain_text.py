"""A plan as people read it: one block for each group of layers that resolve alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..registry.errors import CheckpointError
from .args_text import layer_text
from .folding import HANG
from .group_text import failure_sections, listed, name_section, origin_section, ranked_section, rule_section
from .grouping import Group, groups
from .kernel_text import kernel_section
from .output import Line, columns
from .page import Page, Row, Section, fit, more

if TYPE_CHECKING:
    from ..registry.plan import Plan, Resolution

SEVERITY_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}
_SEPARATOR = " · "


def plan_lines(plan: Plan, page: Page) -> Iterator[Line]:
    """The whole report."""
    yield header(plan)
    yield []
    found = groups(plan.layers)
    heads = columns([_head(group, plan) for group in found], gap="   ")
    for group, padded in zip(found, heads, strict=True):
        head: Line = padded[1:]
        if page.height(head) > 1:
            head = _beside_each_other(_head(group, plan))
        yield head
        yield from fit(_body(group, page), page, taken=page.height(head))
    if found:
        yield []
    yield from footer(plan, page)


def header(plan: Plan) -> Line:
    """Model, format, writer, device."""
    name = plan.architecture or plan.model_type
    parts = [str(name)] if name else []
    parts += [plan.format] if plan.format else []
    parts += [f"written by compressed-tensors {plan.version}"] if plan.version else []
    parts.append(f"device {plan.environment.describe()}")
    return [(_SEPARATOR.join(parts), "bold")]


def _head(group: Group, plan: Plan) -> list[tuple[str, str]]:
    """count, scheme, args, backend / kernel."""
    layer, count = group.first, len(group)
    sizes = len(str(len(plan.layers)))
    scheme = layer.scheme or "no scheme"
    args = layer_text(layer.weights, layer.inputs, layer.outputs, layer.spec.dtype if layer.spec else None)
    if layer.kind != "linear":
        args = f"{layer.kind}: {args}" if args else layer.kind
    style = "bold red" if layer.error is not None else "bold"
    return [
        (f"{count:>{sizes}} layer{'s' if count != 1 else ' '}", style),
        (scheme, style),
        (args, ""),
        (_kernel_text(layer), "red" if layer.error is not None else "green"),
    ]


def _beside_each_other(row: list[tuple[str, str]]) -> Line:
    """A head without columns, where these would not fit."""
    count, *others = [(text.strip(), style) for text, style in row if text.strip()]
    return [count, "   ", HANG, *(part for cell in others for part in (cell, "   "))]


def _kernel_text(layer: Resolution) -> str:
    if layer.kernel is None:
        return "no kernel" if layer.error is not None else "torch"
    backend, _, rest = layer.kernel.partition("/")
    return f"{backend} / {rest}" if rest else backend


def _body(group: Group, page: Page) -> list[Section]:
    first = group.first
    quantized = first.scheme != "dense"
    return [
        *name_section(group, page.width),
        *origin_section(group),
        *(rule_section(first.rule) if quantized else []),
        *(kernel_section(group.kernels(), len(group), brief=True) if quantized else []),
        *ranked_section(first, brief=True),
        *listed("applies", tuple(first.transforms)),
        *listed("deviates", tuple(first.deviations)),
        *failure_sections(group),
    ]


def footer(plan: Plan, page: Page) -> Iterator[Line]:
    """What concerns no single layer, worst first; and what was looked for and not found."""
    rank = {"error": 0, "warning": 1, "note": 2}
    found: dict[tuple[str, str], list[str]] = {}
    for problem in sorted(plan.problems, key=lambda p: rank.get(p.severity, 0)):
        where = f" ({problem.where})" if problem.where and str(problem.where) not in problem.message else ""
        text = f"{problem.code}: {problem.message}{where}"
        found.setdefault((problem.severity, problem.code), []).append(text)
    named = {layer.name for layer in plan.failing}
    for error in plan.errors:
        if error.layer not in named:
            text = f"{type(error).__name__}: {error}{error.mark}"
            found.setdefault(("error", type(error).__name__), []).append(text)
    sections = []
    for (severity, kind), texts in found.items():
        lead = (f"{severity:<8} ", SEVERITY_STYLES.get(severity, ""))
        rows = [Row(text, lead=lead, most=6) for text in texts]
        sections.append(Section(None, rows, more(kind, kind), indent=""))
    last: Line = [(_SEPARATOR.join(_all_clear(plan)), "dim")]
    yield from fit(sections, page, taken=page.height(last))
    yield last


def _all_clear(plan: Plan) -> Iterator[str]:
    codes = [problem.code for problem in plan.problems]
    unmatched = sum("unmatched" in code for code in codes)
    broken = sum("plugin" in code for code in codes)
    failed = sum(1 for _ in plan.failing)
    if failed:
        yield f"{failed} of {len(plan.layers)} layers do not resolve"
    yield f"{unmatched} unmatched pattern{'s' if unmatched != 1 else ''}" if unmatched else "nothing unmatched"
    yield f"{broken} broken plugin{'s' if broken != 1 else ''}" if broken else "no broken plugins"
    if plan.checkpoint is not None and not any(isinstance(error, CheckpointError) for error in plan.errors):
        yield "every stored tensor has an owner"
