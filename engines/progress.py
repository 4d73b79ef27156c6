"""A progress bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def track(items: Sequence[T], description: str, *, show: bool) -> Iterator[T]:
    """Iterate; with ``show``, draw a bar on stderr that disappears when done."""
    if not show:
        yield from items
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield from bar.track(items, description=description)
