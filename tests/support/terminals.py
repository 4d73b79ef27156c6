"""A real terminal of any width, and what is seen on it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import sys
import termios
import threading
import tty
import unicodedata
from collections.abc import Sequence

from quantdispatch.cli.app import main

STYLE = re.compile(r"\x1b\[[0-9;]*m")


def seen(written: str) -> list[str]:
    """Lines without styles."""
    return STYLE.sub("", written).replace("\r\n", "\n").splitlines()


def columns_of(text: str) -> int:
    """Columns of a terminal, from Unicode's own properties."""
    return sum(
        0 if unicodedata.category(c) in ("Mn", "Me") else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def letters(text: str) -> str:
    """What remains when folding and columns are taken away."""
    return "".join(text.split())


def open_terminal(columns: int) -> tuple[int, int]:
    """File descriptors: ours, and the one that is a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    tty.setraw(theirs)  # line ends as they are written
    return ours, theirs


class _Reader(threading.Thread):
    def __init__(self, descriptor: int) -> None:
        super().__init__(daemon=True)
        self.descriptor, self.found = descriptor, bytearray()
        self.start()

    def run(self) -> None:
        # a terminal whose other side was closed gives an error in place of an end
        with contextlib.suppress(OSError):
            while piece := os.read(self.descriptor, 65536):
                self.found += piece


def on_terminal(arguments: Sequence[str], columns: int, encoding: str = "utf-8") -> tuple[int, str]:
    """Exit code of the command, and what it wrote to its standard output, a terminal."""
    ours, theirs = open_terminal(columns)
    reader = _Reader(ours)
    before = sys.stdout
    with open(theirs, "w", encoding=encoding) as stream:
        sys.stdout = stream
        try:
            code = main(arguments)
        finally:
            sys.stdout = before
    reader.join(timeout=30)
    os.close(ours)
    return code, reader.found.decode(encoding)
