"""``quantdispatch explain``: a plan, or a part of it, as text or JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from ..registry.plan import plan as make_plan
from .output import Output
from .run import known_backend

if TYPE_CHECKING:
    from ..registry.plan import Plan


def explain_command(
    source: str,
    *,
    device: str,
    layer: str | None,
    modules: Mapping[str, tuple[str, ...]] | None,
    why_not: str | None,
    allow: list[str],
    meta: bool,
    environment: Mapping[str, Any] | None = None,
    full: bool = False,
    as_json: bool,
) -> int:
    """The exit code. Raises what ``plan()`` raises, and typer's ``BadParameter`` for an unknown layer or backend."""
    if why_not is not None:
        known_backend(why_not)
    named = dict(modules or {})
    if meta:
        plan = _plan_on_meta(source, device, named, allow, environment)
    else:
        plan = _plan(source, device, named or None, allow, environment)
    if layer is not None:
        _known_layer(plan, layer)
    output = Output()
    if as_json:
        output.json(_document(plan, layer, why_not))
    elif layer is not None:
        from .layer_text import layer_lines

        output.lines(layer_lines(plan.layers[layer]))
    elif why_not is not None:
        from .layer_text import why_not_lines
        from .page import Page

        output.lines(why_not_lines(plan, why_not, Page.of(output, full=full)))
    else:
        from .explain_text import plan_lines
        from .page import Page

        output.lines(plan_lines(plan, Page.of(output, full=full)))
    return exit_code(plan, layer)


def _plan(
    source: str,
    device: str,
    modules: Mapping[str, tuple[str, ...]] | None,
    allow: list[str],
    environment: Mapping[str, Any] | None,
) -> Plan:
    return make_plan(source, device=device, modules=modules, allow=allow, environment=environment, strict=False)


def _plan_on_meta(
    source: str,
    device: str,
    named: Mapping[str, tuple[str, ...]],
    allow: list[str],
    environment: Mapping[str, Any] | None,
) -> Plan:
    """``named`` stands above what the model says. The model has modules that no file has (tied heads, containers): that
    is no problem of the checkpoint."""
    from dataclasses import replace

    from .meta import modules_on_meta

    plan = _plan(source, device, {**modules_on_meta(source), **named}, allow, environment)
    kept = tuple(p for p in plan.problems if p.code != "unknown-module" or p.where in named)
    return replace(plan, problems=kept)


def exit_code(plan: Plan, layer: str | None = None) -> int:
    """0 when all of it (or the one layer) resolves, else the gravest error's."""
    if layer is not None:
        error = plan.layers[layer].error
        return error.exit_code if error is not None else 0
    codes = [error.exit_code for error in plan.errors]
    codes += [layer.error.exit_code for layer in plan.failing if layer.error is not None]
    codes += [1 for problem in plan.problems if problem.severity == "error"]
    return max(codes, default=0)


def _document(plan: Plan, layer: str | None, why_not: str | None) -> dict[str, Any]:
    document: dict[str, Any] = dict(plan.to_json())
    if layer is not None:
        document["layers"] = [entry for entry in document["layers"] if entry["name"] == layer]
    if why_not is not None:
        from .layer_text import why_not_json

        entries = why_not_json(plan, why_not)
        document["why_not"] = [entry for entry in entries if layer in (None, entry["layer"])]
    return document


def _known_layer(plan: Plan, name: str) -> None:
    if name in plan.layers:
        return
    from difflib import get_close_matches

    near = get_close_matches(name, list(plan.layers)[:20_000], n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else f"; the plan has {len(plan.layers)} layers"
    raise typer.BadParameter(f"no layer {name!r}{hint}")
