"""The page of errors: each code with its class, meaning, cause and remedy."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from ..registry.error_codes import CATALOGUE, ErrorCode
from ..registry.error_parts import PARTS
from ..registry.errors import QuantDispatchError
from ..registry.plan import plan
from ..registry.registry import Registry

_PARTS = (
    ("The configuration and what was asked for", "QD5"),
    ("Files and stored tensors", "QD6"),
    ("Schemes and kernels", "QD7"),
    ("Calling a layer", "QD8"),
    ("Plugins, plans and tables", "QD9"),
)


def errors_page(registry: Registry) -> Iterator[str]:
    yield from (
        "# Errors",
        "",
        "Every error has a code. The command prints it behind the line, `--json` has it as `code`, and it is",
        "`error.code` in Python. Wording may change; a code keeps its meaning. The findings of",
        "`quantdispatch rules --check` have codes of their own, in [rule checks](rule-checks.md).",
        "",
        "An error names the layer, the field (a key of the config, a tensor, an argument), what was observed there,",
        "what is required, and a remedy: in its line, and as `error.layer`, `.field`, `.observed`, `.required` and",
        "`.remedy`. Below, each code says which of them its errors always name.",
        "",
        *_example(registry),
        "",
        "| code | class | meaning |",
        "|---|---|---|",
    )
    for row in CATALOGUE.values():
        yield f"| [{row.code}](#{row.code.lower()}) | `{row.error}` | {_cell(row.meaning)} |"
    for title, prefix in _PARTS:
        yield from ("", f"## {title}")
        for row in CATALOGUE.values():
            if row.code.startswith(prefix):
                yield from _section(row)


def _example(registry: Registry) -> Iterator[str]:
    """An error that is made here and now, so that it reads as it does everywhere."""
    error = _failing(registry)
    yield from ("For example, int4 weights in a format that is for float8:", "", "```text")
    line = f"error: {type(error).__name__}: {error} [{error.code}]"
    yield from textwrap.wrap(line, 112, break_long_words=False, break_on_hyphens=False)
    yield from ("```", "", "| part | what it is here |", "|---|---|")
    yield f"| code | `{error.code}` |"
    for part in PARTS:
        value = getattr(error, part)
        yield f"| {part} | {_cell(str(value)) if part == 'remedy' else f'`{value}`'} |"
    yield from (
        "",
        "With `--json`, the error of a layer stands in the plan as `error`, and one that ends the command is the",
        'document: `{"version": 1, "error": {"code", "type", "message", "layer", "field", "observed", "required",',
        '"remedy", "nearest"}}`, with `null` for what is not named.',
    )


def _failing(registry: Registry) -> QuantDispatchError:
    name, weights = (
        "model.layers.0.mlp.down_proj",
        {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32},
    )
    block = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
    error = plan(block, modules={name: "Linear"}, strict=False, registry=registry).layers[name].error
    assert error is not None
    return error


def _section(row: ErrorCode) -> Iterator[str]:
    yield from ("", f"### {row.code}", "", f"`{row.error}`: {_sentence(row.meaning)}", "")
    yield f"* **Cause**: {_sentence(row.cause)}"
    yield f"* **Remedy**: {_sentence(row.remedy)}"
    yield f"* **Names**: {', '.join(row.names) or 'what its raiser gives'}."
    for reason in dict.fromkeys(row.unnamed.values()):
        parts = [part for part, own in row.unnamed.items() if own == reason]
        yield f"* Need not name {' and '.join(parts)}: {_sentence(reason)}"
    if row.python_only:
        yield "* Only from Python: no option of the command leads to it."


def _sentence(text: str) -> str:
    return _cell(text) + "."


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")
