"""The command on a real terminal, in a pipe, and in other encodings: colours, widths, names that others wrote."""

from __future__ import annotations

import json

import pytest
from terminal_sources import NAMES, hostile_names, many_errors
from terminals import STYLE, columns_of, letters, on_terminal, seen

from quantdispatch.cli.app import main

WIDTHS = (40, 80, 120, 200)
SWITCHES = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS", "COLORTERM", "TERM", "QUANTDISPATCH_DEBUG")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SWITCHES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    return hostile_names(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> str:
    return many_errors(tmp_path_factory.mktemp("wrong"))


def in_pipe(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(arguments)
    return code, capsys.readouterr().out


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("source", ["hostile", "wrong"])
def test_no_line_is_wider_than_the_terminal(source: str, columns: int, request: pytest.FixtureRequest) -> None:
    for options in (["--full"], [], ["--why-not", "cpu"]):
        _, written = on_terminal(["explain", request.getfixturevalue(source), *options], columns)
        widest = max(seen(written), key=columns_of)
        assert columns_of(widest) <= columns, widest
        assert STYLE.search(written)


@pytest.mark.parametrize("columns", WIDTHS)
def test_nothing_is_lost_on_a_terminal(
    hostile: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Folded, the same text; only how names are taken together depends on the width."""
    code, written = on_terminal(["explain", hostile, "--full", "--layer", NAMES[-1]], columns)
    expected_code, expected = in_pipe(["explain", hostile, "--full", "--layer", NAMES[-1]], capsys)
    assert code == expected_code
    assert letters("".join(seen(written))) == letters(expected)
    _, written = on_terminal(["explain", hostile, "--full"], columns)
    text = letters("".join(seen(written)))
    for name in ("x" * 300, "long." + ".".join(["part_of_it"] * 28), "漢字", "ｆｕｌｌ", "caf"):
        assert name in text


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("source", ["hostile", "wrong"])
def test_a_block_is_at_most_a_screen(source: str, columns: int, request: pytest.FixtureRequest) -> None:
    _, written = on_terminal(["explain", request.getfixturevalue(source)], columns)
    for block in blocks(written):
        assert len(block) <= 24, "\n".join(block)


def blocks(written: str) -> list[list[str]]:
    """The report cut at the heads, which are bold and begin with a number, and at empty lines."""
    found: list[list[str]] = [[]]
    for line, plain in zip(written.splitlines(), seen(written), strict=True):
        if not plain:
            found.append([])
        elif plain.lstrip()[:1].isdigit() and " layer" in plain and line.startswith("\x1b[1"):
            found.append([plain])
        else:
            found[-1].append(plain)
    return found


def test_many_errors_are_a_few_blocks(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = in_pipe(["explain", wrong], capsys)
    whole_code, whole = in_pipe(["explain", wrong, "--full"], capsys)
    assert code == whole_code == 1
    assert len(out.splitlines()) < 200 < len(whole.splitlines())
    assert "(all of them with --full)" in out and "--full" not in whole
    assert sum("unmatched-ignore" in line for line in whole.splitlines()) == 200
    document = json.loads(in_pipe(["explain", wrong, "--json"], capsys)[1])
    failing = {layer["name"] for layer in document["layers"] if layer["error"]}
    assert f"{len(failing)} of {len(document['layers'])} layers do not resolve" in out
    # each kind of error is named, however few layers have it
    kinds = {layer["error"]["code"] for layer in document["layers"] if layer["error"]}
    assert len(kinds) > 3 and all(f"[{kind}]" in out for kind in kinds)


def test_no_name_does_anything_to_the_terminal(hostile: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, written = on_terminal(["explain", hostile, "--full"], 80)
    _, piped = in_pipe(["explain", hostile, "--full"], capsys)
    for text in (STYLE.sub("", written), piped):
        assert all(c.isprintable() or c == "\n" for c in text)
        for spelled in r"\x1b[31m \u202e \u2066 \ud800 \x9b \x00 \t \n \u200b \xa0".split():
            assert spelled in letters(text)


@pytest.mark.parametrize(
    ("environment", "terminal", "pipe"),
    [
        ({}, True, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"NO_COLOR": ""}, True, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"CLICOLOR_FORCE": "1"}, True, True),
        ({"CLICOLOR_FORCE": "0"}, True, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
        ({"TERM": "dumb"}, False, False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, False, False),
    ],
)
def test_colours(
    environment: dict[str, str], terminal: bool, pipe: bool, hostile: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    _, written = on_terminal(["explain", hostile], 80)
    assert bool(STYLE.search(written)) is terminal
    assert max(map(columns_of, seen(written))) <= 80
    _, piped = in_pipe(["explain", hostile], capsys)
    assert bool(STYLE.search(piped)) is pipe
    assert max(map(columns_of, seen(piped))) > 300


def test_columns_of_the_environment_count_more_than_the_terminal(hostile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(columns_of, seen(on_terminal(["explain", hostile], 200)[1]))) <= 60
    monkeypatch.setenv("COLUMNS", "wide")
    assert 60 < max(map(columns_of, seen(on_terminal(["explain", hostile], 100)[1]))) <= 100


@pytest.mark.parametrize("columns", WIDTHS)
def test_json_is_the_same_everywhere(
    hostile: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, piped = in_pipe(["explain", hostile, "--json"], capsys)
    monkeypatch.setenv("FORCE_COLOR", "1")
    _, written = on_terminal(["explain", hostile, "--json"], columns, encoding="ascii")
    assert written == piped and piped.isascii()
    assert {layer["name"] for layer in json.loads(written)["layers"]} >= set(NAMES)


@pytest.mark.parametrize(
    ("arguments", "columns"), [(["rules"], 40), (["rules"], 120), (["doctor"], 40), (["rules", "--coverage"], 80)]
)
def test_the_other_commands_fit_too(arguments: list[str], columns: int, capsys: pytest.CaptureFixture[str]) -> None:
    code, written = on_terminal(arguments, columns)
    assert max(map(columns_of, seen(written))) <= columns
    piped_code, piped = in_pipe(arguments, capsys)
    assert (code, letters("".join(seen(written)))) == (piped_code, letters(piped))


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_encodings(encoding: str, hostile: str) -> None:
    code, written = on_terminal(["explain", hostile, "--full"], 80, encoding)
    utf8_code, utf8 = on_terminal(["explain", hostile, "--full"], 80)
    assert code == utf8_code
    if encoding == "utf-8":
        assert written == utf8 and "漢字" in utf8 and " · " in utf8
    else:
        assert r"\u6f22\u5b57" in written and r"\U0001f600" in written.replace("\n", "")
        assert (" | " in written.splitlines()[0]) is (encoding == "ascii")
    assert max(map(columns_of, seen(written))) <= 80
