"""The tensors of a checkpoint as columns: what a header says of each, without an object for each.

A large checkpoint has hundreds of thousands of tensors of a few dozen kinds. A file's tensors are kept as a list of
names, a list of (shared) kinds and the bounds of their data; a :class:`TensorEntry` is made when one is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import add, attrgetter
from typing import NoReturn, Protocol

from .errors import UnreadableCheckpointError

DOWNLOAD_AGAIN = "download or write the file again"


class Described(Protocol):
    """What a header says of a tensor."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True, eq=False)
class TensorKind:
    """What tensors of one local name, dtype and shape share; compared by identity.

    ``tail``: the end of their names, from the dot before the local name on. ``value``: the bytes, where a plan goes by
    them (see :mod:`.families`).
    """

    tail: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    value: bytes | None = None

    @property
    def local(self) -> str:
        return self.tail.removeprefix(".")


class TensorEntry:
    """One tensor of a header. ``start`` and ``end`` are byte positions in ``file``.

    ``file`` is a path, or a URL where only headers are.
    """

    __slots__ = ("dtype", "end", "file", "local", "name", "shape", "start")

    def __init__(
        self, name: str, dtype: str, shape: tuple[int, ...], file: str, start: int, end: int, local: bool
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.file = file
        self.start = start
        self.end = end
        self.local = local

    @property
    def nbytes(self) -> int:
        return self.end - self.start

    def read(self) -> bytes | None:
        """The raw little-endian bytes, or ``None`` where only headers are at hand (a hub id).

        Raises ``UnreadableCheckpointError`` when the file is gone or has become shorter.
        """
        if not self.local:
            return None
        try:
            with open(self.file, "rb") as stream:
                stream.seek(self.start)
                data = stream.read(self.nbytes)
        except OSError as error:
            raise unreadable(self.file, error) from None
        if len(data) != self.nbytes:
            raise cut_off(self.file, self.name, len(data), self.nbytes)
        return data

    def __repr__(self) -> str:
        return f"TensorEntry({self.name!r}, {self.dtype}, {list(self.shape)}, {os.path.basename(self.file)})"


class Stored(dict[TensorKind, "Stored"]):
    """What a module stores: its tensors' kinds by local name, in the file's order. Modules alike share one object.

    Looked up by one more kind, it gives what the module stores with a tensor of that kind. ``repeated``: a local name
    came twice.
    """

    __slots__ = ("kinds", "repeated")

    def __init__(self, kinds: Mapping[str, TensorKind], repeated: bool = False) -> None:
        super().__init__()
        self.kinds = kinds
        self.repeated = repeated

    def __missing__(self, kind: TensorKind) -> Stored:
        local = kind.local
        more = self[kind] = Stored({**self.kinds, local: kind}, self.repeated or local in self.kinds)
        return more


class Header:
    """The tensors of one file in the order of their data.

    ``modules``, ``kinds``: of each. ``bounds``: where each starts, and where the last ends, in bytes from ``base``,
    where the data begin. ``local``: the data are at hand. ``stored``: what each module has in this file.
    """

    __slots__ = ("_entries", "_rows", "base", "bounds", "file", "kinds", "local", "modules", "stored")

    def __init__(
        self,
        file: str,
        modules: list[str],
        kinds: list[TensorKind],
        bounds: Sequence[int],
        stored: dict[str, Stored],
        *,
        base: int,
        local: bool,
    ) -> None:
        self.file = file
        self.modules = modules
        self.kinds = kinds
        self.bounds = bounds
        self.stored = stored
        self.base = base
        self.local = local
        self._rows: dict[str, int] = {}
        self._entries: dict[int, TensorEntry] = {}

    @property
    def names(self) -> list[str]:
        """Of all tensors, in their order; made anew each time."""
        return list(map(add, self.modules, map(attrgetter("tail"), self.kinds)))

    def __len__(self) -> int:
        return len(self.modules)

    def __iter__(self) -> Iterator[TensorEntry]:
        return map(self.entry, range(len(self.modules)))

    def __getitem__(self, name: str) -> TensorEntry:
        if not self._rows:
            self._rows = {name: row for row, name in enumerate(self.names)}
        return self.entry(self._rows[name])

    def entry(self, row: int) -> TensorEntry:
        """The tensor in that row; always the same object."""
        found = self._entries.get(row)
        if found is None:
            kind, start, end = self.kinds[row], self.base + self.bounds[row], self.base + self.bounds[row + 1]
            name = self.modules[row] + kind.tail
            found = TensorEntry(name, kind.dtype, kind.shape, self.file, start, end, self.local)
            self._entries[row] = found
        return found

    def read_rows(self, rows: Sequence[int]) -> list[bytes]:
        """The bytes of small tensors in ascending rows; neighbours are read together.

        Raises ``UnreadableCheckpointError`` when the file is gone or has become shorter.
        """
        bounds = self.bounds
        runs = _runs(rows)
        starts = [bounds[run[0]] for run in runs]
        sizes = [bounds[run[-1] + 1] - start for run, start in zip(runs, starts, strict=True)]
        try:
            with open(self.file, "rb", buffering=0) as stream:
                places = map(self.base.__add__, starts)
                found = list(map(read_at, repeat(stream.fileno()), sizes, places))
        except OSError as error:
            raise unreadable(self.file, error) from None
        if list(map(len, found)) != sizes:
            self._raise_cut_off(runs, found)
        if len(runs) == len(rows):
            return found
        return [
            data[bounds[row] - start : bounds[row + 1] - start]
            for run, start, data in zip(runs, starts, found, strict=True)
            for row in run
        ]

    def _raise_cut_off(self, runs: list[list[int]], found: list[bytes]) -> NoReturn:
        """Names the first tensor that is not whole."""
        for run, data in zip(runs, found, strict=True):
            for row in run:
                end = self.bounds[row + 1] - self.bounds[run[0]]
                if len(data) < end:
                    size = self.bounds[row + 1] - self.bounds[row]
                    raise cut_off(
                        self.file, self.modules[row] + self.kinds[row].tail, max(0, len(data) - end + size), size
                    )
        raise AssertionError("no tensor is cut off")


def _runs(rows: Sequence[int]) -> list[list[int]]:
    """Adjacent rows together."""
    if rows and rows[-1] - rows[0] == len(rows) - 1:
        return [list(rows)]
    runs: list[list[int]] = []
    following = None
    for row in rows:
        if row == following:
            runs[-1].append(row)
        else:
            runs.append([row])
        following = row + 1
    return runs


def _seek_and_read(descriptor: int, count: int, start: int) -> bytes:
    os.lseek(descriptor, start, os.SEEK_SET)
    return os.read(descriptor, count)


#: (descriptor, count, start) to at most ``count`` bytes: in one call where the operating system has one for it
read_at: Callable[[int, int, int], bytes] = getattr(os, "pread", _seek_and_read)


def unreadable(path: str | os.PathLike[str], error: OSError) -> UnreadableCheckpointError:
    """An operating system's refusal as an error of ours."""
    reason = error.strerror or type(error).__name__
    return UnreadableCheckpointError(
        f"cannot read {os.fspath(path)}: {reason}", field=os.fspath(path), observed=reason,
        required="a file that may be read", remedy="check the path and its permissions", code="QD608",
    )  # fmt: skip


def cut_off(file: str, name: str, found: int, nbytes: int) -> UnreadableCheckpointError:
    """The file has become shorter than its header says."""
    return UnreadableCheckpointError(
        f"{file} ends inside tensor {name}", field=name, observed=f"{found} bytes", required=f"{nbytes} bytes",
        remedy=DOWNLOAD_AGAIN, code="QD607",
    )  # fmt: skip
