"""Pages of docs/ as steps to carry out: commands with what they print, files to write, Python to run.

What a fenced block is for stands in its language and in a comment right above it, which no reader sees:

* ``console``: lines that begin with ``$ `` are commands; the lines below one are all that it prints. A command below
  which nothing stands may print anything. ``<!-- exits with 1 -->``: with that code, and not with 0.
* ``<!-- file: PATH -->``: the block is written there.
* ``python``: run by an interpreter of its own; ``<!-- continues -->``: after the block before it, in the same one.
* ``<!-- prints -->``: what the Python block before it prints.
* any other block is there to be read.

In what is printed a line ``...`` stands for any number of lines, and ``...`` within a line for any text. What differs
from machine to machine and from day to day (:data:`VARIES`) is not compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
DIRECTIVE = re.compile(r"<!-- (file: (?P<file>\S+)|exits with (?P<code>\d+)|(?P<word>continues|prints)) -->")

#: the same text on both sides
VARIES = (
    (re.compile(r"cpu \((?:avx512|avx2|portable|sse4|neon|\w+), \d+ threads?\)"), "cpu (ISA)"),
    (re.compile(r"\b\d+(?:\.\d+)? tokens/s"), "N tokens/s"),
    (re.compile(r"(\w\.py):\d+"), r"\1:LINE"),
    (re.compile(r"\b(quantdispatch|compressed-tensors) \d+\.\d+\.\d+"), r"\1 VERSION"),
    (re.compile(r"[ \t]+"), " "),
)


@dataclass(frozen=True)
class Step:
    """``kind`` is ``"command"``, ``"file"`` or ``"python"``; ``text`` the command, the content or the program."""

    kind: str
    text: str
    line: int
    path: str = ""
    prints: str | None = None
    code: int = 0


def steps(page: Path) -> list[Step]:
    """Of one page, in order. Raises ``ValueError`` for a directive that belongs to nothing."""
    found: list[Step] = []
    programs = 0
    directive: re.Match[str] | None = None
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8")):
        line = token.map[0] + 1 if token.map else 0
        if token.type == "html_block":
            directive = DIRECTIVE.fullmatch(token.content.strip())
            continue
        if token.type == "fence":
            word, file = (directive["word"], directive["file"]) if directive else (None, None)
            if file:
                found.append(Step("file", token.content, line, path=file))
            elif token.info == "console":
                code = int(directive["code"] or 0) if directive else 0
                found += (replace(step, code=code) for step in _commands(token.content, line))
            elif token.info == "python":
                text = token.content
                if word == "continues":
                    before = next(step for step in reversed(found) if step.kind == "python")
                    text = f"{before.text}\n{text}"
                programs += 1
                found.append(Step("python", text, line))
            elif word == "prints":
                if not found or found[-1].kind != "python":
                    raise ValueError(f"{page}:{line}: what is printed stands below the Python that prints it")
                found[-1] = replace(found[-1], prints=token.content)
            elif directive:
                raise ValueError(f"{page}:{line}: {directive.group()} above a block of {token.info or 'text'}")
        if token.nesting >= 0 and token.type != "html_block":
            directive = None
    return found


def _commands(block: str, line: int) -> Iterator[Step]:
    command, prints = None, []
    for number, text in enumerate([*block.splitlines(), "$ "], start=line + 1):
        if not text.startswith("$ "):
            prints.append(text)
            continue
        if command is not None:
            shown = "\n".join(prints).strip("\n")
            yield replace(command, prints=shown or None)
        command, prints = Step("command", text[2:], number), []


def plain(text: str) -> str:
    """Without what varies, and without spaces at the ends of lines."""
    for pattern, same in VARIES:
        text = pattern.sub(same, text)
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def matches(shown: str, printed: str) -> bool:
    """Is ``printed`` what ``shown`` says?"""
    parts = []
    for line in plain(shown).splitlines():
        if line.strip() == "...":
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(".*?".join(re.escape(piece) for piece in line.split("...")) + r"\n")
    return re.fullmatch("".join(parts), plain(printed) + "\n") is not None
