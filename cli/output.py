"""Lines for a terminal, a pipe or a file.

Columns are padded, never wrapped or cut: what is piped into ``grep`` or ``less -S`` must hold whole names. Styles only
where a terminal shows them, ASCII where the stream's encoding has nothing else, and no control character ever (names
come from files that others wrote).
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

#: text, or text with a style of rich
Segment = str | tuple[str, str]
Line = Sequence[Segment]

_PLAIN = {"·": "|", "…": "...", "×": "x", "≤": "<=", "—": "-", "→": "->"}
_CONTROL = r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"


def printable(text: str) -> str:
    """``text`` with control characters spelled out, so that a name cannot move the cursor or start a line."""
    if text.isprintable():
        return text
    return re.sub(_CONTROL, lambda match: match.group().encode("unicode_escape").decode("ascii"), text)


def encodable(text: str, encoding: str | None) -> str:
    """``text`` in what ``encoding`` can express: our own signs become ASCII, other characters escapes."""
    try:
        text.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        for sign, plain in _PLAIN.items():
            text = text.replace(sign, plain)
        text = text.encode(encoding or "ascii", "backslashreplace").decode(encoding or "ascii")
    return text


def wants_style(stream: TextIO) -> bool:
    """NO_COLOR (https://no-color.org) and a dumb terminal say no, whatever FORCE_COLOR says; else terminals say yes."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


class Output:
    """Writes lines to one stream."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stdout if stream is None else stream
        self._console: Any = None
        if wants_style(self.stream):
            from rich.console import Console  # only here: a third of the command's start

            self._console = Console(file=self.stream, force_terminal=True, highlight=False, markup=False, emoji=False)

    @property
    def width(self) -> int:
        """Columns within which a line reads well; only what can be said in several lines keeps to it."""
        if not self.stream.isatty():
            return 110
        import shutil

        return max(40, min(140, shutil.get_terminal_size().columns))

    def line(self, *segments: Segment) -> None:
        parts = [(s, "") if isinstance(s, str) else s for s in segments]
        parts = [(encodable(printable(text), self.stream.encoding), style) for text, style in parts]
        if self._console is None:
            self.stream.write("".join(text for text, _ in parts).rstrip() + "\n")
            return
        from rich.text import Text

        line = Text.assemble(*parts)
        line.rstrip()
        self._console.print(line, soft_wrap=True)

    def lines(self, lines: Iterable[Line]) -> None:
        for line in lines:
            self.line(*line)

    def table(self, rows: Iterable[Sequence[Segment]], *, indent: str = "", gap: str = "  ") -> None:
        """Rows of cells, each column as wide as its widest cell."""
        self.lines(columns(rows, indent=indent, gap=gap))

    def json(self, document: Any) -> None:
        """One JSON document. ASCII, and strict: NaN has no JSON."""
        self.stream.write(json.dumps(document, indent=2, allow_nan=False, default=str) + "\n")


def columns(rows: Iterable[Sequence[Segment]], *, indent: str = "", gap: str = "  ") -> list[list[Segment]]:
    """The rows as lines of segments padded to a common width a column."""
    cells = [[(c, "") if isinstance(c, str) else c for c in row] for row in rows]
    cells = [[(printable(text), style) for text, style in row] for row in cells]
    sizes: list[int] = []
    for row in cells:
        sizes += [0] * (len(row) - len(sizes))
        sizes[: len(row)] = [max(size, len(text)) for size, (text, _) in zip(sizes, row, strict=False)]
    return [
        [indent, *((text.ljust(size) + gap, style) for size, (text, style) in zip(sizes, row, strict=False))]
        for row in cells
    ]
