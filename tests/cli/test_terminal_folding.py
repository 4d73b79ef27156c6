"""Lines folded to a width: none is wider, nothing is lost, and styles stay with their text."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from terminals import columns_of, letters

from quantdispatch.cli.folding import HANG, Piece, cells, fold

WORDS = st.text(alphabet="ab01.,{}-_\\/é漢字，😀\u0301", min_size=1, max_size=60)
TEXTS = st.lists(st.one_of(WORDS, st.sampled_from([" ", "   ", "x" * 300, "漢" * 90])), max_size=12).map("".join)
PIECES = st.lists(st.one_of(st.tuples(TEXTS, st.sampled_from(["", "red", "bold"])), st.just(HANG)), max_size=6)


def shown(lines: list[list[Piece]]) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


@settings(max_examples=300, deadline=None)
@given(PIECES, st.integers(2, 200))
@example([("a" * 30, ""), HANG, ("b" * 30, "red")], 40)
@example([(" " * 50, ""), ("x" * 50, "")], 20)
@example([("漢" * 5, "")], 3)
def test_no_line_is_wider_and_nothing_is_lost(pieces: list[Piece], width: int) -> None:
    lines = fold(pieces, width)
    text = "".join(part for part, _ in pieces)
    assert all(columns_of(line.rstrip()) <= width for line in shown(lines))
    assert letters("".join(shown(lines))) == letters(text)
    assert HANG not in [piece for line in lines for piece in line]
    # each character has the style that it had
    styled = [(c, style) for part, style in pieces for c in part if not c.isspace()]
    assert [(c, style) for line in lines for part, style in line for c in part if not c.isspace()] == styled


@given(TEXTS)
def test_columns_are_those_of_unicode(text: str) -> None:
    assert cells(text) == columns_of(text)


@given(st.lists(st.text(alphabet="abcdefgh", min_size=1, max_size=12), min_size=1, max_size=30), st.integers(40, 120))
def test_words_that_fit_are_never_broken(words: list[str], width: int) -> None:
    assert " ".join(shown(fold([(" ".join(words), "")], width))).split() == words


@given(st.integers(24, 120), st.lists(st.sampled_from(["model", "layers", "0-29", "up_proj"]), min_size=1, max_size=80))
def test_a_name_reads_as_one_once_the_indent_is_gone(width: int, parts: list[str]) -> None:
    name = ".".join(parts)
    assert "".join(line.strip() for line in shown(fold([("    ", ""), (name, "cyan")], width))) == name


@pytest.mark.parametrize(
    ("pieces", "width", "lines"),
    [
        ([("", "")], 10, [""]),
        ([("one two three", "")], 9, ["one two", "  three"]),
        ([("a.b.c.d.e.f", "")], 6, ["a.b.c.", " d.e.f"]),
        # further lines below what a mark stands in front of, where there is room to read
        ([("label  ", "dim"), HANG, ("word " * 8, "")], 40, ["label  " + "word " * 5 + "word", "       word word"]),
        # and else further left
        ([("x" * 30 + " ", ""), HANG, ("word " * 4, "")], 40, ["x" * 30 + " word word", "    word word"]),
        # an escaped space is no place to break
        ([("aaaa\\ bbbb cccc", "")], 12, ["aaaa\\ bbbb", "   cccc"]),
        ([("漢字漢字", "")], 4, ["漢字", " 漢", " 字"]),
        ([("e\u0301" * 4, "")], 2, ["e\u0301" * 2, "e\u0301" * 2]),
    ],
)  # fmt: skip
def test_table(pieces: list[Piece], width: int, lines: list[str]) -> None:
    assert [line.rstrip() for line in shown(fold(pieces, width))] == lines
