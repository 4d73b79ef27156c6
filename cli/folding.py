"""Lines folded to a terminal's width.

Breaks are taken at spaces. A word that is longer than a line is broken behind a dot, a comma or the like, so that what
was one name reads as one: taking the line's end and the indent away gives it back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

Piece = tuple[str, str]

#: a segment that shows nothing: further lines of what stands behind it begin below it
HANG: Piece = ("", "hang")
#: below this a text cannot be read: further lines then begin further left
READABLE = 24
_BREAKS = frozenset(".,;:/|}_-")


def cells(text: str) -> int:
    """Columns that a terminal takes for ``text``: two for most East Asian characters, none for combining marks."""
    if text.isascii() or max(text) < "\u0300":
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def fold(pieces: Sequence[Piece], width: int) -> list[list[Piece]]:
    """The (text, style) ``pieces`` of one line as lines of at most ``width`` columns (one character at the least)."""
    text = "".join(part for part, _ in pieces).rstrip()
    if cells(text) <= width:
        return [[piece for piece in pieces if piece != HANG]]
    starts = [0, *accumulate(1 if text.isascii() else cells(character) for character in text)]
    hang = _hang(pieces, text, width)
    lines, start, indent = [], 0, 0
    body = len(text) - len(text.lstrip())
    while True:
        room = max(1, width - indent)
        end = bisect_right(starts, starts[start] + room, lo=start + 1) - 1
        end = max(end, start + 1)
        if end >= len(text):
            lines.append([(" " * indent, ""), *_cut(pieces, start, len(text))])
            return lines
        # a break so far left that the next line has no more room would only waste a line
        earliest = (max(body, min(hang, end)) if not lines else start) + 1
        end = _break(text, earliest, end)
        lines.append([(" " * indent, ""), *_cut(pieces, start, len(text[:end].rstrip(" ")))])
        start = len(text) - len(text[end:].lstrip(" "))
        indent = hang


def _hang(pieces: Sequence[Piece], text: str, width: int) -> int:
    """Where further lines begin: below the rightmost mark that leaves room to read, else a little to the right."""
    at, marks = 0, []
    for piece in pieces:
        if piece == HANG:
            marks.append(cells(text[:at]) if at else 0)
        at += len(piece[0])
    indent = len(text) - len(text.lstrip(" "))
    fitting = [mark for mark in marks if mark <= max(width - READABLE, width // 4)]
    return max(fitting) if fitting else min(indent + 4, width // 4)


def _break(text: str, earliest: int, end: int) -> int:
    """Where the line ends that has room up to ``end``: at a space, else behind a sign, else there."""
    for at in range(end, earliest - 1, -1):
        if text[at] == " " and text[at - 1] != "\\" and text[:at].strip():
            return at
    for at in range(end, (earliest + end) // 2, -1):
        if text[at - 1] in _BREAKS and text[at - 2 : at - 1] != "\\":
            return at
    return end


def _cut(pieces: Sequence[Piece], start: int, end: int) -> list[Piece]:
    found, at = [], 0
    for part, style in pieces:
        piece = part[max(0, start - at) : max(0, end - at)]
        if piece:
            found.append((piece, style))
        at += len(part)
    return found
