"""``quantdispatch rules``: what is installed, whether it is consistent, and what it covers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..registry.errors import QuantDispatchError
from ..registry.facts import SIDES
from ..registry.registry import Registry, get_registry
from .group_text import origin
from .output import Line, Output
from .page import labelled

if TYPE_CHECKING:
    from ..registry.analysis import Finding
    from ..registry.predicates import Box
    from ..registry.rules import Rule


def rules_command(*, check: bool, coverage: bool, as_json: bool) -> int:
    """0, or 1 when ``check`` finds an error; warnings alone are none."""
    registry = get_registry()
    output = Output()
    if check:
        return _check(registry, output, as_json)
    if coverage:
        from .coverage import coverage_json, show_coverage

        if as_json:
            output.json(coverage_json(registry))
        else:
            show_coverage(registry, output)
        return 0
    if as_json:
        rules = [{**rule.to_json(), "scheme": scheme_name(registry, rule)[0]} for rule in registry.rules.rules]
        output.json({"version": 1, "rules": rules, "kernels": [kernel.to_json() for kernel in registry.kernels]})
        return 0
    output.lines(_listing(registry))
    return 0


def scheme_name(registry: Registry, rule: Rule) -> tuple[str, str | None]:
    """The name of a rule's scheme; or what the rule says, and why that cannot be imported."""
    try:
        return registry.scheme_class(rule).name, None
    except QuantDispatchError as error:
        return rule.scheme, str(error)


def _listing(registry: Registry) -> Iterator[Line]:
    for rule in registry.rules.rules:
        name, error = scheme_name(registry, rule)
        yield [(rule.name, "bold cyan"), *([f"   {rule.summary}"] if rule.summary else [])]
        rows = [("scheme", name, ""), ("from", origin(rule), "")]
        rows += condition_rows(rule.predicate.boxes)
        rows += [("overrides", ", ".join(rule.overrides), "")] if rule.overrides else []
        rows += [("same as", f"{engine}: {_notes(names)}", "") for engine, names in rule.equivalents.items()]
        rows += [("differs", f"{engine}: {_notes(reasons)}", "") for engine, reasons in rule.differs.items()]
        rows += [("error", error, "bold red")] if error else []
        yield from labelled(rows)
    yield []
    backends = ", ".join(dict.fromkeys(kernel.backend for kernel in registry.kernels)) or "none"
    kernels = len(registry.kernels)
    text = f"{len(registry.rules.rules)} rules · {kernels} kernel{'s' if kernels != 1 else ''} · backends: {backends}"
    yield [(text, "dim")]


def _notes(notes: str | Iterable[str] | Mapping[str, Any]) -> str:
    """What a rule says of an engine; a mapping says it of a part of the rule."""
    if isinstance(notes, Mapping):
        return "; ".join(f"{text} (where {part})" for text, part in notes.items())
    return notes if isinstance(notes, str) else ", ".join(notes)


def condition_rows(boxes: Sequence[Box]) -> list[tuple[str, str, str]]:
    """What all alternatives ask for, then what each of several asks for besides."""
    shared = {name for name, wanted in boxes[0].fields if all(box.domains.get(name) == wanted for box in boxes[1:])}
    rows = _side_rows("when", [(n, str(d)) for n, d in boxes[0].fields if n in shared])
    for i, box in enumerate(boxes if len(boxes) > 1 else ()):
        own = [(n, str(d)) for n, d in box.fields if n not in shared]
        rows += [
            ("either" if i == 0 else "or", "; ".join(text for _, text, _ in _side_rows("", own)) or "nothing else", "")
        ]
    return rows


def _side_rows(label: str, fields: Sequence[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """``kind: ...`` and the like in one row, then one row for each of weights, inputs and outputs."""
    own = [f"{name} {text}" for name, text in fields if name not in SIDES and "." not in name]
    rows = [", ".join(own)] if own else []
    for side in SIDES:
        parts = [f"{name.partition('.')[2]} {text}" for name, text in fields if name.startswith(f"{side}.")]
        whole = dict(fields).get(side)
        if parts or whole is not None:
            rows.append(f"{side} {', '.join(parts) if parts else whole}")
    return [(label if i == 0 else "", text, "") for i, text in enumerate(rows)]


def findings(registry: Registry) -> tuple[Finding, ...]:
    """What is wrong with all rules, kernels and plugins taken together, those that a conflict disabled included."""
    from ..registry.analysis import check_rules, finding
    from ..registry.rules.supported import SUPPORTED

    found = list(check_rules(registry.registered, against=(), supported=SUPPORTED))
    for problem in registry.problems:
        if problem.subject != "rule":  # rules have just been checked again, with witnesses
            name = "broken-plugin" if problem.subject == "plugin" else "name-clash"
            found.append(finding(name, problem.message, distributions=problem.distributions))
    return tuple(sorted(found, key=lambda f: (f.severity != "error", f.code)))


def _check(registry: Registry, output: Output, as_json: bool) -> int:
    found = findings(registry)
    errors = sum(finding.severity == "error" for finding in found)
    code = 1 if errors else 0
    if as_json:
        counts = {"rules": len(registry.registered), "kernels": len(registry.kernels)}
        output.json({"version": 1, "findings": [finding.to_json() for finding in found], "errors": errors, **counts})
        return code
    for finding in found:
        output.lines(_finding_lines(finding))
    parts = {"rule": registry.registered, "kernel": registry.kernels, "plugin": registry.plugins}
    checked = ", ".join(_count(len(items), name) for name, items in parts.items())
    counted = [_count(errors, "error"), _count(len(found) - errors, "warning")]
    output.line(f"{', '.join(counted)} in {checked}")
    return code


def _finding_lines(finding: Finding) -> Iterator[Line]:
    style = "bold red" if finding.severity == "error" else "yellow"
    yield [(f"{finding.severity:<9}", style), f"{finding.code} {finding.name}: {finding.message}"]
    if finding.remedy:
        yield ["         remedy   ", finding.remedy]
    for config in finding.configs():
        # one line, to be pasted into a config.json or given to plan() as it is
        yield ["         config   ", json.dumps({"quantization_config": config})]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"
