"""A plan as people read it: one block for each group of layers that resolve alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import groupby
from types import SimpleNamespace
from typing import TYPE_CHECKING

from ..registry.errors import CheckpointError
from .args_text import layer_text
from .collapse import collapse
from .grouping import Group, KernelAnswer, error_text, groups
from .output import Line, columns

if TYPE_CHECKING:
    from ..registry.plan import Plan, Resolution
    from ..registry.rules import Rule

INDENT = "    "
STATUS_STYLES = {"yes": "green", "no": "red", "if": "yellow"}
SEVERITY_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}
#: every quantized layer has these, so they tell nothing about it
_USUAL = {"weight_scale", "weight_shape", "bias"}
_SEPARATOR = " · "
#: ignore entries shown for one group
MAX_ENTRIES = 12


def plan_lines(plan: Plan, width: int) -> Iterator[Line]:
    """The whole report; ``width`` columns where a choice exists."""
    yield header(plan)
    yield []
    found = groups(plan.layers)
    heads = columns([_head(group, plan) for group in found], gap="   ")
    for group, head in zip(found, heads, strict=True):
        yield head[1:]
        yield from _body(group, plan, width)
    if found:
        yield []
    yield from footer(plan)


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


def _kernel_text(layer: Resolution) -> str:
    if layer.kernel is None:
        return "no kernel" if layer.error is not None else "torch"
    backend, _, rest = layer.kernel.partition("/")
    return f"{backend} / {rest}" if rest else backend


def _body(group: Group, plan: Plan, width: int) -> Iterator[Line]:
    yield from name_lines(group, width)
    quantized = group.first.scheme != "dense"
    rows = [*origin_rows(group), *_rule_rows(group.first.rule if quantized else None)]
    rows += kernel_rows(_elsewhere_as_one(group.kernels()), len(group), brief=True) if quantized else []
    rows += ranked_rows(group.first, brief=True)
    rows += [("applies", text, "") for text in group.first.transforms]
    rows += [("deviates", text, "") for text in group.first.deviations]
    rows += failure_rows(group.first)
    yield from labelled(rows)


def labelled(rows: list[tuple[str, str, str]]) -> Iterator[Line]:
    """(label, text, style) rows under one another; an empty label continues the one above."""
    for label, text, style in rows:
        yield [INDENT, (f"{label:<9}", "dim"), (text, style)]


def origin_rows(group: Group) -> list[tuple[str, str, str]]:
    """The pattern that decided, and what was read off the tensors."""
    layer = group.first
    if layer.kind == "kv_cache":
        return [("target", f"attention with a cache, by {layer.group}", "")]
    if layer.target is None or layer.ignored_by is not None:
        return _ignored_rows(group)
    telling = [name for name in group.stored() if name not in _USUAL and "." not in name]  # matrices of transforms
    inferred = f"from tensors: {', '.join(telling)}" if telling else layer.inferred
    where = f" in {layer.group}" if layer.group is not None else ""
    return [("target", f'"{layer.target}"{where}' + (f" ({inferred})" if inferred else ""), "")]


def _ignored_rows(group: Group) -> list[tuple[str, str, str]]:
    """The ignore entries that decided, the busiest first; an ignore list may have thousands."""
    counts = sorted(group.ignored().items(), key=lambda item: -item[1])
    several = len(counts) > 1
    rows = []
    for entry, count in counts[:MAX_ENTRIES]:
        label, text = ("ignored", f'"{entry}"') if entry is not None else ("target", "none: no config group names it")
        rows.append((label, f"{text} ({count})" if several else text, ""))
    if len(counts) > MAX_ENTRIES:
        rows.append(("", f"and {len(counts) - MAX_ENTRIES} more entries (all of them with --json)", "dim"))
    return rows


def name_lines(group: Group, width: int) -> Iterator[Line]:
    """The names, collapsed; a single one as it is, and none where it is its own ignore entry and stands there."""
    names = group.names
    if len(names) == 1:
        patterns = [] if names[0] == group.first.ignored_by else [names[0] or '""']
    else:
        patterns = collapse(names, width - len(INDENT))
    for pattern in patterns:
        yield [INDENT, (pattern, "cyan")]


def _rule_rows(rule: Rule | None) -> list[tuple[str, str, str]]:
    if rule is None:
        return []
    return [("rule", f"{rule.name:<18} {origin(rule)}", "")]


def origin(rule: Rule) -> str:
    """Distribution, version, file and line of a rule."""
    return ", ".join(part for part in (f"{rule.distribution} {rule.version}".strip(), rule.source) if part)


def kernel_rows(
    answers: list[KernelAnswer], layers: int, instead: str | None = None, *, brief: bool = False
) -> list[tuple[str, str, str]]:
    """``kernels`` rows: name, yes/no/if, why. ``instead``: the chosen kernel, where ``answers`` leaves it out.
    ``brief``: of a kernel for another device, that alone."""
    size = max([18, *(len(answer.kernel.name) for answer in answers)])
    rows: list[tuple[str, str, str]] = []
    passed = False
    for answer in answers:
        for (status, reasons), count in (_brief(answer.counts) if brief else answer.counts).items():
            shown = answer.kernel.name if not rows or rows[-1][0] != answer.kernel.name else ""
            text = _verdict(answer, status, reasons, passed, instead)
            share = f" ({count} of {layers} layers)" if count != layers else ""
            rows.append(
                (answer.kernel.name, f"{shown:<{size}} {status:<3}  {text}{share}", STATUS_STYLES.get(status, ""))
            )
        passed = passed or answer.chosen == layers
    return [("kernels" if i == 0 else "", text, style) for i, (_, text, style) in enumerate(rows)]


def _elsewhere_as_one(answers: list[KernelAnswer]) -> list[KernelAnswer]:
    """The kernels of a backend that follow each other and are all for another device as one, ``triton/*``."""
    shown: list[KernelAnswer] = []
    for (elsewhere, backend), run in groupby(answers, lambda answer: (_elsewhere(answer), answer.kernel.backend)):
        own = list(run)
        if elsewhere and len(own) > 1:
            one = KernelAnswer(SimpleNamespace(name=f"{backend}/*", backend=backend, slow=False))
            one.counts[("no", elsewhere)] = max(answer.counts.total() for answer in own)
            own = [one]
        shown += own
    return shown


def _elsewhere(answer: KernelAnswer) -> tuple[str, ...]:
    """The reasons, if all of them are the device."""
    counts = _brief(answer.counts)
    ((status, reasons),) = counts if len(counts) == 1 else ((None, ()),)
    return reasons if status == "no" and all(reason.startswith("device is ") for reason in reasons) else ()


def ranked_rows(layer: Resolution, *, brief: bool = False) -> list[tuple[str, str, str]]:
    """Where the chosen kernel's place comes from, if it is not the usual order. ``brief``: without figures, which are
    those of one layer."""
    text = layer.selection.ranked if layer.selection is not None else ""
    return [("ranked", text.partition(";")[0] if brief else text, "")] if text else []


def _brief(counts: Mapping[tuple[str, tuple[str, ...]], int]) -> Counter[tuple[str, tuple[str, ...]]]:
    short: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for (status, reasons), count in counts.items():
        device = tuple(reason for reason in reasons if reason.startswith("device is "))
        short[status, device if status == "no" and device else reasons] += count
    return short


def _verdict(answer: KernelAnswer, status: str, reasons: tuple[str, ...], passed: bool, instead: str | None) -> str:
    words = ["; ".join(reasons)] if reasons else []
    if status != "no" and answer.chosen:
        words.insert(0, "chosen, if" if status == "if" and reasons else "chosen")
    elif status != "no" and instead is not None:
        words.insert(0, f"would do, but {instead} ranks higher")
    elif status != "no" and passed and not answer.kernel.slow:
        words.insert(0, "ranks lower")
    if answer.kernel.slow and status != "no":
        words.append("slow, last")
    return ", ".join(words).replace("chosen, if, ", "chosen if ")


def failure_rows(layer: Resolution) -> list[tuple[str, str, str]]:
    """What went wrong, what came closest, what would help."""
    error = layer.error
    if error is None:
        return []
    rows = [("error", error_text(error, layer.name), "bold red")]
    if layer.scheme is None:
        nearest = [str(candidate) for candidate in getattr(error, "nearest", ())]
        rows += [("nearest" if i == 0 else "", text, "") for i, text in enumerate(nearest)]
    return rows + ([("remedy", error.remedy, "yellow")] if error.remedy else [])


def footer(plan: Plan) -> Iterator[Line]:
    """What concerns no single layer, worst first; and what was looked for and not found."""
    rank = {"error": 0, "warning": 1, "note": 2}
    for problem in sorted(plan.problems, key=lambda p: rank.get(p.severity, 0)):
        where = f" ({problem.where})" if problem.where and str(problem.where) not in problem.message else ""
        text = f"{problem.code}: {problem.message}{where}"
        yield [(f"{problem.severity:<8} ", SEVERITY_STYLES.get(problem.severity, "")), text]
    named = {layer.name for layer in plan.failing}
    for error in plan.errors:
        if error.layer not in named:
            yield [("error    ", SEVERITY_STYLES["error"]), f"{type(error).__name__}: {error}{error.mark}"]
    yield [(_SEPARATOR.join(_all_clear(plan)), "dim")]


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
