"""The records of the native kernels. Importing this is cheap, like importing those of torch's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ....registry.domains import not_in
from ....registry.environment import NATIVE
from ....registry.kernels import Kernel, Needs
from ....registry.predicates import Box
from ....registry.values import ABSENT

_HERE = "quantdispatch.backends.cpu.native"


def compiled(boxes: Iterable[Needs]) -> Iterator[Needs]:
    """The same needs where the library of native kernels is."""
    there = Needs({f"package.{NATIVE}": not_in({ABSENT})}).boxes[0]
    for needs in boxes:
        more = Needs()
        more.boxes = tuple(Box((box & there).fields) for box in needs.boxes)
        yield more


def linear(boxes: Iterable[Needs]) -> Iterator[Kernel]:
    """``cpu/native`` for what ``boxes`` admit: all that the kernels admit which decode with torch."""
    yield Kernel(
        name="cpu/native",
        op="linear",
        rank=100,
        requires=tuple(compiled(boxes)),
        target=f"{_HERE}.linear:NativeLinear",
        probe=f"{_HERE}.probe:linear",
    )
