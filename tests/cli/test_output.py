"""Lines, columns, styles and encodings."""

from __future__ import annotations

import io
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantdispatch.cli.output import Output, columns, encodable, printable, wants_style


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.mark.parametrize(
    ("terminal", "environment", "styled"),
    [
        (False, {}, False),
        (True, {}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
        (False, {"FORCE_COLOR": "1"}, True),
        (False, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (False, {"FORCE_COLOR": "1", "TERM": "dumb"}, False),
        (False, {"FORCE_COLOR": ""}, False),
        (False, {"CLICOLOR_FORCE": "1"}, True),
        (False, {"CLICOLOR_FORCE": "0"}, False),
        (False, {"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_when_styles_are_used(
    terminal: bool, environment: dict[str, str], styled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = Terminal() if terminal else io.StringIO()
    assert wants_style(stream) is styled
    Output(stream).line(("red", "bold red"), " plain")
    assert ("\x1b[" in stream.getvalue()) is styled
    assert "plain" in stream.getvalue()


def test_long_lines_stay_in_one_piece_in_a_pipe() -> None:
    stream, name = io.StringIO(), "model.layers." + "x" * 500
    Output(stream).line(name)
    assert stream.getvalue().strip("\n") == name


@given(st.text())
def test_no_control_character_comes_through(text: str) -> None:
    shown = printable(text)
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in shown)
    assert printable(shown) == shown


@given(st.text(), st.sampled_from(["ascii", "latin-1", "cp1252", "utf-8", None, "no-such-encoding"]))
def test_whatever_is_written_can_be_encoded(text: str, encoding: str | None) -> None:
    if encoding != "no-such-encoding":
        encodable(printable(text), encoding).encode(encoding or "ascii")


@pytest.mark.parametrize(
    ("encoding", "text"), [("utf-8", "a · b"), ("ascii", "a | b"), (None, "a | b"), ("latin-1", "a · b")]
)
def test_our_signs_have_ascii_forms(encoding: str | None, text: str) -> None:
    assert encodable("a · b", encoding) == text


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    lines = columns([["a", ("bbb", "red")], ["cccc", "d", "e"]], indent="  ", gap=" | ")
    texts = ["".join(part if isinstance(part, str) else part[0] for part in line) for line in lines]
    assert texts == ["  a    | bbb | ", "  cccc | d   | e | "]


def test_json_is_ascii_and_strict() -> None:
    stream = io.StringIO()
    Output(stream).json({"name": "é\u2028"})
    assert stream.getvalue().isascii() and json.loads(stream.getvalue()) == {"name": "é\u2028"}
    with pytest.raises(ValueError):
        Output(stream).json({"x": math.nan})
