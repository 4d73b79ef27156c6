"""Lines for a terminal, a pipe or a file.

A terminal gets styles, and lines folded to its width. A pipe gets neither: what is read by ``grep`` or ``less -S`` must
hold whole lines. ASCII where the stream's encoding has nothing else, and no character ever that a terminal would act on
(names come from files that others wrote).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Container, Iterable, Sequence
from typing import Any, TextIO

from .folding import HANG, cells, fold

#: text, or text with a style of rich
Segment = str | tuple[str, str]
Line = Sequence[Segment]

#: columns in which a pipe's reader can take in a line; only what can be said in several lines keeps to it
PIPE_WIDTH = 110
#: characters of JSON written at once
_PIECE = 1 << 16
_PLAIN = {" · ": " | ", "…": "..."}
#: what text that is meant to be read, and no name, may have besides printable characters
_IN_PROSE = frozenset("\t\u00a0\u00ad\u200b\u200c\u200d\u2009\u202f\u3000")


def printable(text: str, also: Container[str] = "") -> str:
    """``text`` with control characters and others that show nothing spelled out, so that a name cannot move the cursor,
    turn the direction of writing or start a line. ``also``: characters that stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in also else ascii(c)[1:-1] for c in text)


def encodable(text: str, encoding: str | None) -> str:
    """``text`` in what ``encoding`` can express: our own signs become ASCII, other characters escapes."""
    try:
        text.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        for sign, plain in _PLAIN.items():
            text = text.replace(sign, plain)
        try:
            text = text.encode(encoding or "ascii", "backslashreplace").decode(encoding or "ascii")
        except LookupError:
            text = text.encode("ascii", "backslashreplace").decode("ascii")
    return text


def wants_style(stream: TextIO) -> bool:
    """NO_COLOR (https://no-color.org) and a dumb terminal say no, whatever else is set; then FORCE_COLOR or
    CLICOLOR_FORCE (other than 0) say yes; else terminals say yes."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    if os.environ.get("FORCE_COLOR") or os.environ.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        return True
    return stream.isatty()


def terminal_width(stream: TextIO) -> int:
    """Columns of the terminal that ``stream`` is: COLUMNS, else what the terminal says, else 80."""
    spelled = os.environ.get("COLUMNS", "")
    if spelled.isascii() and spelled.isdecimal() and len(spelled) <= 6 and int(spelled) > 0:
        return int(spelled)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return 80


class Output:
    """Writes lines to one stream."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stdout if stream is None else stream
        #: columns to which lines are folded; ``None``: they are not
        self.fold: int | None = terminal_width(self.stream) if self.stream.isatty() else None
        self._console: Any = None
        if wants_style(self.stream):
            from rich.console import Console  # only here: a third of the command's start

            self._console = Console(
                file=self.stream, force_terminal=True, highlight=False, markup=False, emoji=False, width=10**6
            )

    @property
    def width(self) -> int:
        """Columns within which a line reads well; only what can be said in several lines keeps to it."""
        return PIPE_WIDTH if self.fold is None else self.fold

    def line(self, *segments: Segment) -> None:
        """One line; on a terminal the lines to which it is folded."""
        for pieces in self.folded(segments):
            self._write(pieces)

    def folded(self, segments: Iterable[Segment]) -> list[list[tuple[str, str]]]:
        """The lines that :meth:`line` writes."""
        pieces = [(s, "") if isinstance(s, str) else s for s in segments]
        pieces = [(encodable(printable(text), self.stream.encoding), style) for text, style in pieces]
        return [[piece for piece in pieces if piece != HANG]] if self.fold is None else fold(pieces, self.fold)

    def prose(self, text: str) -> None:
        """Text that is itself the answer, line ends, tabs and long lines as they are."""
        for line in text.splitlines():
            self._write([(encodable(printable(line, _IN_PROSE), self.stream.encoding), "")])

    def _write(self, pieces: Sequence[tuple[str, str]]) -> None:
        if self._console is None:
            self.stream.write("".join(text for text, _ in pieces).rstrip() + "\n")
            return
        from rich.text import Text

        line = Text.assemble(*pieces)
        line.rstrip()
        self._console.print(line, soft_wrap=True)

    def lines(self, lines: Iterable[Line]) -> None:
        for line in lines:
            self.line(*line)

    def table(self, rows: Iterable[Sequence[Segment]], *, indent: str = "", gap: str = "  ") -> None:
        """Rows of cells, each column as wide as its widest cell. Where they do not fit side by side, those to the right
        stand below."""
        for line in columns(rows, indent=indent, gap=gap, width=self.fold):
            self.line(*line)

    def json(self, document: Any) -> None:
        """One JSON document, the same on a terminal. ASCII, and strict: NaN has no JSON."""
        text = json.dumps(document, indent=2, allow_nan=False, default=str) + "\n"
        # Piece by piece: of one long write it is not always told that the reader went away in the middle.
        for start in range(0, len(text), _PIECE):
            self.stream.write(text[start : start + _PIECE])


def columns(
    rows: Iterable[Sequence[Segment]], *, indent: str = "", gap: str = "  ", width: int | None = None
) -> list[list[Segment]]:
    """The rows as lines of segments padded to a common width a column; a row may take several lines of ``width``."""
    table = [[(c, "") if isinstance(c, str) else c for c in row] for row in rows]
    table = [[(printable(text), style) for text, style in row] for row in table]
    sizes: list[int] = []
    for row in table:
        sizes += [0] * (len(row) - len(sizes))
        sizes[: len(row)] = [max(size, cells(text)) for size, (text, _) in zip(sizes, row, strict=False)]
    lines: list[list[Segment]] = []
    for row in table:
        padded = [(text + " " * (sizes[i] - cells(text)) + gap, style) for i, (text, style) in enumerate(row)]
        for start, end in _side_by_side(sizes, len(indent), len(gap), width):
            if start == 0 or row[start:end]:
                lines.append([indent if start == 0 else indent + "    ", *padded[start:end]])
    return lines


def _side_by_side(sizes: Sequence[int], indent: int, gap: int, width: int | None) -> list[tuple[int, int]]:
    """Ranges of columns that fit into a line."""
    found, start, used = [], 0, indent
    for i, size in enumerate(sizes):
        if width is not None and i > start and used + size > width:
            found.append((start, i))
            start, used = i, indent + 4
        used += size + gap
    return [*found, (start, len(sizes))]
