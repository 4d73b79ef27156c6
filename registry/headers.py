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
from typing import Any, NamedTuple

from .errors import UnreadableCheckpointError
from .header_scan import scan_header
from .stored_tensors import DOWNLOAD_AGAIN, Header, Stored, TensorKind
from .stored_tensors import TensorEntry as TensorEntry  # what a header is made of
from .stored_tensors import unreadable as unreadable

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


class _Row(NamedTuple):
    """One tensor's place, sortable by it. Offsets are relative to the data."""

    start: int
    end: int
    name: str
    kind: TensorKind


def read_header(path: str) -> Header:
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


def parse_header(text: bytes, size: int | None, file: str, *, local: bool) -> Header:
    """Check a header's JSON against the size of the file and give its tensors in the order of their data."""
    base = 8 + len(text)
    columns = scan_header(text, _size_or_none)
    if columns is not None:
        header = Header(file, *columns, base=base, local=local)
    else:
        rows = _parse_rows(text, file)
        _check_gaps(rows, base, file)
        bounds = [*(row.start for row in rows), rows[-1].end if rows else 0]
        modules = [row.name.removesuffix(row.kind.tail) for row in rows]
        stored: dict[str, Stored] = {}
        nothing = Stored({})
        for module, row in zip(modules, rows, strict=True):
            stored[module] = stored.get(module, nothing)[row.kind]
        header = Header(file, modules, [row.kind for row in rows], bounds, stored, base=base, local=local)
    _check_end(header, size)
    return header


def _parse_rows(text: bytes, file: str) -> list[_Row]:
    try:
        header = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError):
        raise _broken(file, "has a header that is not JSON", repr(text[:40]), "a JSON object") from None
    if not isinstance(header, dict):
        raise _broken(file, "has a header that is not a JSON object", type(header).__name__, "object")
    header.pop("__metadata__", None)
    rows: list[_Row] = []
    kinds: dict[Any, TensorKind] = {}
    for name, raw in header.items():
        try:
            dtype, shape = raw["dtype"], tuple(raw["shape"])
            start, end = raw["data_offsets"]
            _, dot, last = name.rpartition(".")
            key = (dot + last, dtype, shape, *map(type, shape))  # to a look-up, 1 and true are the same
            kind = kinds.get(key)
            if kind is None:
                kind = kinds[key] = TensorKind(dot + last, dtype, shape, _nbytes(dtype, shape, file, name))
            fits = type(start) is type(end) is int and end - start == kind.nbytes
        except (KeyError, TypeError, ValueError):
            raise _malformed(file, name, raw) from None
        if not fits or start < 0:
            raise _bad_offsets(file, name, raw, kind.nbytes)
        rows.append(_Row(start, end, name, kind))
    rows.sort(key=lambda row: row[:2])
    return rows


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


def _size_or_none(dtype: str, shape: tuple[int, ...]) -> int | None:
    bits = DTYPE_BITS.get(dtype)
    if bits is None:
        return None
    whole, rest = divmod(math.prod(shape) * bits, 8)
    return None if rest else whole


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


def _check_gaps(rows: list[_Row], base: int, file: str) -> None:
    """The data leaves no gap and overlaps nowhere."""
    position, previous = 0, "the header"
    for row in rows:
        if row.start != position:
            what = "overlaps" if row.start < position else "leaves a gap after"
            raise _broken(
                file, f"is inconsistent: tensor {row.name} {what} {previous}", f"starts at byte {base + row.start}",
                f"byte {base + position}", row.name,
            )  # fmt: skip
        position, previous = row.end, row.name


def _check_end(header: Header, size: int | None) -> None:
    """The data ends where the file ends."""
    position = header.base + header.bounds[-1]
    if size is not None and position > size:
        last = next(entry for entry in header if entry.end > size)
        raise _broken(
            header.file, f"is truncated: the data of tensor {last.name} ends beyond the file", f"{size} bytes",
            f"{position} bytes", last.name, "QD607",
        )  # fmt: skip
    if size is not None and position < size:
        raise _broken(header.file, "has bytes that belong to no tensor", f"{size} bytes", f"{position} bytes")


def _broken(
    file: str, what: str, observed: Any, required: Any, tensor: str | None = None, code: str = "QD606"
) -> UnreadableCheckpointError:
    return UnreadableCheckpointError(
        f"{file} {what}",
        field=tensor or os.path.basename(file),
        observed=observed,
        required=required,
        remedy=DOWNLOAD_AGAIN,
        code=code,
    )
