"""The command as a shell starts it: streams, a reader that goes away, an interrupt, what is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from terminal_sources import hostile_names, many_errors
from terminals import STYLE, letters, open_terminal, seen

COMMAND = [sys.executable, "-m", "quantdispatch.cli"]
PLAIN = {
    name: value
    for name, value in os.environ.items()
    if name not in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS", "QUANTDISPATCH_DEBUG")
} | {"TERM": "xterm-256color"}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    return hostile_names(tmp_path_factory.mktemp("hostile"))


def started(command: list[str], **variables: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, capture_output=True, timeout=120, check=False, env={**PLAIN, **variables})


def test_a_pipe_of_another_encoding(hostile: str) -> None:
    ended = started([*COMMAND, "explain", hostile], PYTHONIOENCODING="ascii")
    assert ended.stdout.isascii() and b" | device " in ended.stdout and b"\x1b" not in ended.stdout
    assert (ended.returncode, ended.stderr) == (1, b"")  # one layer is ignored and quantized


def test_a_stream_is_a_terminal_for_itself(hostile: str) -> None:
    """Standard error may be one while the answer goes into a file."""
    ours, theirs = open_terminal(50)
    try:
        command = [*COMMAND, "explain", hostile + "/none\x1b[31m"]
        failed = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, timeout=120, check=False, env=PLAIN)
    finally:
        os.close(theirs)
    written = os.read(ours, 65536).decode()
    os.close(ours)
    assert (failed.returncode, failed.stdout) == (2, b"")
    assert STYLE.match(written) and seen(written)[0].startswith("error: ")
    assert max(map(len, seen(written))) <= 50 and r"\x1b[31m" in letters(written)


@pytest.mark.parametrize(("option", "read"), [("--json", 2), ("--full", 0)])
def test_a_reader_that_goes_away_is_no_error(option: str, read: int, tmp_path: Path) -> None:
    """In the middle of more than a pipe holds, or before anything is written."""
    source = many_errors(tmp_path)
    process = subprocess.Popen(
        [*COMMAND, "explain", source, option], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, env=PLAIN
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(read) == b"{\n"[:read]
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=120) == 141


INTERRUPTED = """
import os, signal, sys, time
import quantdispatch.cli.explain as explain
from quantdispatch.cli.app import main

def plan(*arguments, **more):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30)

explain.make_plan = plan
sys.exit(main(["explain", "anything"]))
"""


def test_an_interrupt_ends_with_130() -> None:
    ended = started([sys.executable, "-c", INTERRUPTED])
    assert (ended.returncode, ended.stdout) == (130, b"")
    # some versions of typer say nothing
    assert ended.stderr.strip() in (b"", b"error: interrupted")


@pytest.mark.parametrize(("variables", "imported"), [({}, False), ({"FORCE_COLOR": "1"}, True)])
def test_rich_is_imported_for_styles_only(variables: dict[str, str], imported: bool, tmp_path: Path) -> None:
    source = many_errors(tmp_path)  # names in ASCII, as they nearly always are
    script = f"import sys; from quantdispatch.cli.app import main; main(['explain', {source!r}])"
    ended = started([sys.executable, "-c", f"{script}; sys.exit(3 if 'rich' in sys.modules else 4)"], **variables)
    assert ended.returncode == (3 if imported else 4), ended.stderr
