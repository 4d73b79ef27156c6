"""docs/cli-reference.md: every command with its arguments and options, as the parser has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from quantdispatch.cli.app import app


def page() -> Iterator[str]:
    yield from (
        "# Options of the command line",
        "",
        "Each command has `--help`, which prints the same. Examples, exit codes",
    )
    yield "and what the output means are in [the command line](cli.md)."
    main: Any = typer.main.get_command(app)
    yield from ("", "## quantdispatch", "", f"{main.help}", "", *_table(main))
    for name, command in sorted(main.commands.items()):
        if command.hidden:
            continue
        places = [
            param.metavar or param.name.upper() for param in command.params if param.param_type_name == "argument"
        ]
        yield from ("", f"## {name}", "", "```text", " ".join(["quantdispatch", name, *places, "[OPTIONS]"]), "```")
        yield from ("", *(command.help or "").splitlines(), "", *_table(command))


def undocumented() -> list[str]:
    """Commands without a description, and options without one."""
    main: Any = typer.main.get_command(app)
    missing = []
    for name, command in main.commands.items():
        missing += [] if command.help else [name]
        missing += [f"{name} {param.opts[0]}" for param in command.params if not getattr(param, "help", None)]
    return missing


def _table(command: Any) -> Iterator[str]:
    yield from ("| | | default |", "| --- | --- | --- |")
    for param in command.params:
        argument = param.param_type_name == "argument"
        names = param.metavar or param.name.upper() if argument else ", ".join(param.opts)
        value = "" if argument or param.is_flag else f" {param.metavar or param.type.name.upper()}"
        default = param.default if not argument and not param.required and not param.is_flag else None
        shown = f"`{default}`" if isinstance(default, (str, int, float)) and not isinstance(default, bool) else ""
        note = "required" if param.required else shown
        yield f"| `{names}{value}` | {(getattr(param, 'help', '') or '').replace('|', chr(92) + '|')} | {note} |"
