"""A group's sections, cut to a screen: what goes first, what always stays, and that what went is counted."""

from __future__ import annotations

import io
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from quantdispatch.cli.output import Line, Output
from quantdispatch.cli.page import SCREEN, Page, Row, Section, fit, more, said


def terminal_page(columns: int, *, full: bool = False) -> Page:
    output = Output(io.StringIO())
    output.fold = columns
    return Page.of(output, full=full)


def texts(lines: list[Line]) -> list[str]:
    return ["".join(part if isinstance(part, str) else part[0] for part in line).rstrip() for line in lines]


@st.composite
def sections(draw: st.DrawFn) -> list[Section]:
    found = []
    for label in draw(st.lists(st.sampled_from(["kernels", "target", "error", None]), min_size=1, max_size=6)):
        sizes = draw(st.lists(st.sampled_from([1, 20, 100, 700, 9000]), min_size=1, max_size=40))
        rows = [Row("w" * size, counts=2, hang=min(size, 10), rank=draw(st.sampled_from([1, 2, 3]))) for size in sizes]
        found.append(Section(label, rows, more("row", of="layer")))
    return found


@settings(max_examples=150, deadline=None)
@given(sections(), st.sampled_from([None, 40, 80, 120, 200]), st.integers(0, 4))
def test_a_group_is_at_most_a_screen_and_says_what_is_missing(
    made: list[Section], columns: int | None, taken: int
) -> None:
    page = Page() if columns is None else terminal_page(columns)
    rows = [len(section.rows) for section in made]
    lines = list(fit(made, page, taken))
    assert sum(map(page.height, lines)) + taken <= SCREEN
    for section, before in zip(made, rows, strict=True):
        assert section.rows and len(section.rows) + section.left_out == before
        assert section.lost == 2 * section.left_out
    said_lost = [int(match[1]) for text in texts(lines) if (match := re.search(r"and (\d+) more row", text))]
    assert said_lost == [section.left_out for section in made if section.left_out]


@given(sections(), st.sampled_from([None, 40, 120]))
def test_full_is_everything(made: list[Section], columns: int | None) -> None:
    page = Page(full=True) if columns is None else terminal_page(columns, full=True)
    expected = [row.text for section in made for row in section.rows]
    assert [text.split()[-1] for text in texts(list(fit(made, page)))] == expected


def test_what_tells_least_goes_first() -> None:
    rows = [Row(f"row{i}", rank=3 - i % 3) for i in range(60)] + [Row("chosen", rank=None)]
    made = [Section("kernels", rows, more("answer")), *said("rule", "r")]
    shown = texts(list(fit(made, Page(), taken=1)))
    assert len(shown) == SCREEN - 1
    assert shown[-3].split() == ["chosen"] and "and 40 more answers (all of them with --full)" in shown[-2]
    assert [text.split()[-1] for text in shown[:20]] == [f"row{i}" for i in range(2, 60, 3)]


def test_rows_that_are_never_left_out_are_shortened_in_the_middle() -> None:
    page = terminal_page(40)
    made = [Section("error", [Row("a" * 400 + f"end{i}", most=6)]) for i in range(8)]
    lines = list(fit(made, page, taken=1))
    shown = texts(lines)
    assert len(shown) == 8 and sum(map(page.height, lines)) <= SCREEN - 1
    assert all("…" in text and text.endswith(f"end{i}") for i, text in enumerate(shown))


def test_said_shorter_before_anything_is_left_out() -> None:
    rows = [Row("long " * 20) for _ in range(20)]
    made = [Section("kernels", rows, more("answer"), lambda columns: [Row("x" * min(columns, 9)) for _ in rows])]
    assert len(list(fit(made, terminal_page(40)))) == 20 and made[0].left_out == 0
