"""The header of a safetensors file, read and checked without any tensor library.

Format (https://github.com/huggingface/safetensors): 8 bytes little-endian header length, that many bytes of JSON
``{"name": {"dtype", "shape", "data_offsets": [start, end]}, "__metadata__": {...}}``, then the data. Offsets are
relative to the data and leave no gap. Files are untrusted: everything is checked before anything is believed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from .errors import UnreadableCheckpointError

#: the limit that the safetensors library itself applies
MAX_HEADER_BYTES = 100_000_000
#: bits an element, by the file's own dtype code
DTYPE_BITS: Mapping[str, int] = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
_DOWNLOAD_AGAIN = "download or write the file again"


class TensorEntry:
    """One tensor of a header. ``start`` and ``end`` are byte positions in ``file``.

    A checkpoint may have hundreds of thousands, hence slots. ``file`` is a path, or a URL where only headers are.
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
            raise UnreadableCheckpointError(
                f"{self.file} ends inside tensor {self.name}", field=self.name, observed=f"{len(data)} bytes",
                required=f"{self.nbytes} bytes", remedy=_DOWNLOAD_AGAIN,
            )  # fmt: skip
        return data

    def __repr__(self) -> str:
        return f"TensorEntry({self.name!r}, {self.dtype}, {list(self.shape)}, {os.path.basename(self.file)})"


def unreadable(path: str | os.PathLike[str], error: OSError) -> UnreadableCheckpointError:
    """An operating system's refusal as an error of ours."""
    reason = error.strerror or type(error).__name__
    return UnreadableCheckpointError(
        f"cannot read {os.fspath(path)}: {reason}", remedy="check the path and its permissions"
    )


def read_header(path: str) -> list[TensorEntry]:
    """The tensors of a local file. Raises ``UnreadableCheckpointError`` naming the file and what is wrong."""
    try:
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            length = header_length(stream.read(8), size, path)
            text = stream.read(length)
    except OSError as error:
        raise unreadable(path, error) from None
    return parse_header(text, size, path, local=True)


def header_length(prefix: bytes, size: int | None, file: str) -> int:
    """The header's length from a file's first 8 bytes; ``size`` of the whole file, ``None`` where it is not known."""
    if len(prefix) < 8:
        raise _broken(file, "is too short to be a safetensors file", f"{len(prefix)} bytes", "at least 8 bytes")
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        raise _broken(
            file, "declares a header over the safetensors limit", f"{length} bytes", f"at most {MAX_HEADER_BYTES} bytes"
        )
    if size is not None and length > size - 8:
        raise _broken(
            file, "declares a header longer than the file", f"header of {length} bytes", f"at most {max(size - 8, 0)}"
        )
    return length


def parse_header(text: bytes, size: int | None, file: str, *, local: bool) -> list[TensorEntry]:
    """Check a header's JSON against the size of the file and give its tensors in the order of their data."""
    try:
        header = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError):
        raise _broken(file, "has a header that is not JSON", None, None) from None
    if not isinstance(header, dict):
        raise _broken(file, "has a header that is not a JSON object", type(header).__name__, "object")
    header.pop("__metadata__", None)
    base = 8 + len(text)
    entries: list[TensorEntry] = []
    # Few kinds of tensors, many tensors: what a dtype and a shape need in bytes is worked out once. The loop is plain
    # because a large checkpoint goes round it two hundred thousand times.
    sizes: dict[tuple[Any, tuple[Any, ...]], int] = {}
    position, in_order = 0, True
    for name, raw in header.items():
        try:
            dtype, shape = raw["dtype"], tuple(raw["shape"])
            start, end = raw["data_offsets"]
            nbytes = sizes.get((dtype, shape))
            if nbytes is None:
                nbytes = sizes[dtype, shape] = _nbytes(dtype, shape, file, name)
            fits = type(start) is type(end) is int and end - start == nbytes
        except (KeyError, TypeError, ValueError):
            raise _malformed(file, name, raw) from None
        if not fits or start < 0:
            raise _bad_offsets(file, name, raw, nbytes)
        in_order = in_order and start == position
        position = end
        entries.append(TensorEntry(name, dtype, shape, file, base + start, base + end, local))
    if not in_order:
        entries.sort(key=attrgetter("start", "end"))
    _check_layout(entries, base, size, file, in_order)
    return entries


def _nbytes(dtype: Any, shape: tuple[Any, ...], file: str, name: str) -> int:
    if any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(shape)
    bits = DTYPE_BITS.get(dtype)
    if bits is None:
        raise _broken(file, f"stores tensor {name} in an unknown dtype", dtype, "a safetensors dtype", name)
    total: int = math.prod(shape) * bits
    if total % 8:
        raise _broken(
            file, f"stores tensor {name} in a fraction of a byte", f"{dtype} {list(shape)}", "whole bytes", name
        )
    return total // 8


def _malformed(file: str, name: str, raw: Any) -> UnreadableCheckpointError:
    what = f"has a malformed entry for tensor {name}"
    return _broken(file, what, repr(raw), "dtype, shape and data_offsets", name)


def _bad_offsets(file: str, name: str, raw: Any, nbytes: int) -> UnreadableCheckpointError:
    start, end = raw["data_offsets"]
    if type(start) is not int or type(end) is not int or not 0 <= start <= end:
        what = f"has impossible data offsets for tensor {name}"
        return _broken(file, what, [start, end], "0 <= start <= end", name)
    what = f"has data offsets that contradict the shape of tensor {name}"
    return _broken(file, what, f"{end - start} bytes", f"{raw['dtype']} {raw['shape']} = {nbytes} bytes", name)


def _check_layout(entries: list[TensorEntry], base: int, size: int | None, file: str, in_order: bool) -> None:
    """The data leaves no gap, overlaps nowhere, and ends where the file ends."""
    if not in_order:
        position, previous = base, "the header"
        for entry in entries:
            if entry.start != position:
                what = "overlaps" if entry.start < position else "leaves a gap after"
                raise _broken(
                    file, f"is inconsistent: tensor {entry.name} {what} {previous}", f"starts at byte {entry.start}",
                    f"byte {position}", entry.name,
                )  # fmt: skip
            position, previous = entry.end, entry.name
    position = entries[-1].end if entries else base
    if size is not None and position > size:
        last = next(entry for entry in entries if entry.end > size)
        raise _broken(
            file, f"is truncated: the data of tensor {last.name} ends beyond the file", f"{size} bytes",
            f"{position} bytes", last.name,
        )  # fmt: skip
    if size is not None and position < size:
        raise _broken(file, "has bytes that belong to no tensor", f"{size} bytes", f"{position} bytes")


def _broken(file: str, what: str, observed: Any, required: Any, tensor: str | None = None) -> UnreadableCheckpointError:
    return UnreadableCheckpointError(
        f"{file} {what}", field=tensor, observed=observed, required=required, remedy=_DOWNLOAD_AGAIN
    )
