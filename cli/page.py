"""What is said of one group of layers, cut to a screen.

A group is a few sections: names, the entries of the config that decided, kernels, errors. Where all of it is more than
a screen, long rows lose their middle, then the longest section loses rows, those first that tell least, and says how
many it lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from .folding import HANG
from .output import PIPE_WIDTH, Line, Output, Segment

INDENT = "    "
#: columns of the labels
LABEL = 9
#: lines of a terminal: a group takes no more
SCREEN = 24
#: of one row, where the rest of it is not asked for
_MOST_LINES = 3
#: characters of a line in a pipe, which nothing folds, that count as one
_PIPE_LINE = 1000


@dataclass(frozen=True)
class Page:
    """``width``: columns where a choice exists. ``height``: lines that one line takes once it is folded. ``full``: cut
    nothing, however long it gets."""

    width: int = PIPE_WIDTH
    height: Callable[[Line], int] = lambda line: 1 + sum(map(_size, line)) // _PIPE_LINE
    full: bool = False

    @classmethod
    def of(cls, output: Output, *, full: bool = False) -> Page:
        if output.fold is None:
            return cls(output.width, full=full)
        return cls(output.width, lambda line: len(output.folded(line)), full)


def _size(segment: Segment) -> int:
    return len(segment if isinstance(segment, str) else segment[0])


@dataclass(frozen=True)
class Row:
    """``lead``: what stands before the text in a style of its own. ``hang``: where in ``text`` further lines begin
    below. ``counts``: how many of what ``Section.rest`` counts it stands for. ``most``: lines that it may take.
    ``rank``: rows of the highest are left out first, ``None`` never."""

    text: str
    style: str = ""
    lead: tuple[str, str] = ("", "")
    hang: int = 0
    counts: int = 1
    most: int = _MOST_LINES
    rank: int | None = 1


@dataclass
class Section:
    """``label``: of the first row; ``None``: no column for labels. ``rest``: what stands for the rows that were left
    out, of their number and the sum of their ``counts``; ``None``: none may be. ``brief``: the same rows said shorter,
    in so many columns. ``limit``: rows, even where there is room for more."""

    label: str | None
    rows: Sequence[Row]
    rest: Callable[[int, int], str] | None = None
    brief: Callable[[int], Sequence[Row]] | None = None
    limit: int = SCREEN
    indent: str = INDENT
    left_out: int = 0
    lost: int = 0

    def lines(self) -> list[Line]:
        lines = [self._line(row, first=i == 0) for i, row in enumerate(self.rows)]
        if self.left_out and self.rest is not None:
            lead = (" " * len(self.rows[-1].lead[0]), "")
            lines.append(self._line(Row(self.rest(self.left_out, self.lost), "dim", lead=lead), first=False))
        return lines

    def _line(self, row: Row, *, first: bool) -> Line:
        line: list[tuple[str, str]] = [(self.indent, "")]
        if self.label is not None:
            line += [(f"{self.label if first else '':<{LABEL}}", "dim"), HANG]
        if row.lead[0]:
            line += [row.lead, HANG]
        if row.hang:
            return [*line, (row.text[: row.hang], row.style), HANG, (row.text[row.hang :], row.style)]
        return [*line, (row.text, row.style)]

    def height(self, page: Page) -> int:
        return sum(map(page.height, self.lines()))

    def may_lose(self) -> bool:
        return self.rest is not None and len(self.rows) > 1 and any(row.rank is not None for row in self.rows)

    def keep(self, number: int) -> None:
        """At most so many rows, those that tell least left out; the last first, and never all."""
        if self.rest is None or len(self.rows) <= number:
            return
        order = sorted(range(len(self.rows)), key=lambda i: (self.rows[i].rank or 0, i))
        kept = set(order[: max(number, 1)])  # those of no rank come first
        kept |= {i for i, row in enumerate(self.rows) if row.rank is None}
        self.left_out += len(self.rows) - len(kept)
        self.lost += sum(row.counts for i, row in enumerate(self.rows) if i not in kept)
        self.rows = [row for i, row in enumerate(self.rows) if i in kept]

    def shorten(self, page: Page, most: int) -> None:
        """No row longer than it may be, nor than ``most`` lines."""
        self.rows = [self._cut(row, page, min(row.most, most)) for row in self.rows]

    def _cut(self, row: Row, page: Page, most: int) -> Row:
        if page.height(self._line(row, first=False)) <= most:
            return row
        size = min(len(row.text), most * max(page.width, _PIPE_LINE))
        while size > 8:
            size = size * 15 // 16
            shorter = replace(row, text=f"{row.text[: size - size // 3]}…{row.text[-(size // 3) :]}")
            if page.height(self._line(shorter, first=False)) <= most:
                return shorter
        return row


def fit(sections: Sequence[Section], page: Page, taken: int = 0) -> Iterator[Line]:
    """The sections' lines, with the ``taken`` lines above them no more than a screen."""
    if not page.full:
        for section in sections:
            section.keep(min(section.limit, SCREEN))
        if _height(sections, page) + taken > SCREEN:
            _squeeze(sections, page, SCREEN - taken)
    for section in sections:
        yield from section.lines()


def _squeeze(sections: Sequence[Section], page: Page, room: int) -> None:
    for section in sections:
        if section.brief is not None and not section.left_out:
            section.rows = section.brief(page.width - len(section.indent) - LABEL)
        section.shorten(page, SCREEN)
    heights = [section.height(page) for section in sections]
    while sum(heights) > room:
        losing = [i for i, section in enumerate(sections) if section.may_lose()]
        if not losing:
            break
        longest = max(losing, key=heights.__getitem__)
        sections[longest].keep(len(sections[longest].rows) - 1)
        heights[longest] = sections[longest].height(page)
    most = max((row.most for section in sections for row in section.rows), default=1)
    while most > 1 and _height(sections, page) > room:
        most -= 1
        for section in sections:
            section.shorten(page, most)


def _height(sections: Iterable[Section], page: Page) -> int:
    return sum(section.height(page) for section in sections)


def whole(sections: Iterable[Section]) -> Iterator[Line]:
    """The sections' lines, none left out."""
    for section in sections:
        yield from section.lines()


def labelled(rows: Iterable[tuple[str, str, str]]) -> Iterator[Line]:
    """(label, text, style) rows under one another; an empty label continues the one above."""
    for label, text, style in rows:
        yield [INDENT, (f"{label:<{LABEL}}", "dim"), HANG, (text, style)]


def said(label: str, *texts: str, style: str = "", most: int = _MOST_LINES) -> list[Section]:
    """Texts below one label, all of which stay; no section without texts."""
    return [Section(label, [Row(text, style, most=most) for text in texts])] if texts else []


def more(noun: str, plural: str = "", *, of: str = "") -> Callable[[int, int], str]:
    """``rest`` of a section: ``and 7 more entries (all of them with --full)``. ``of``: what the rows count, where that
    is not the rows themselves."""

    def rest(left: int, lost: int) -> str:
        counted = f", {lost} {of}{'s' if lost != 1 else ''}" if of else ""
        return f"and {left} more {noun if left == 1 else plural or noun + 's'}{counted} (all of them with --full)"

    return rest
