"""The page of errors: each code with its class, meaning, cause and remedy."""

from __future__ import annotations

from collections.abc import Iterator

from ..registry.error_codes import CATALOGUE, ErrorCode

_PARTS = (
    ("The configuration and what was asked for", "QD5"),
    ("Files and stored tensors", "QD6"),
    ("Schemes and kernels", "QD7"),
    ("Calling a layer", "QD8"),
    ("Plugins, plans and tables", "QD9"),
)


def errors_page() -> Iterator[str]:
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
