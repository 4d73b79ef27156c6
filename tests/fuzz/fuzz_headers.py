"""Fuzz target: the header of a safetensors file. Its tensors, lying end to end in the file, or an error of ours.

The quick reader of usual headers (``registry/header_scan.py``) must give what the reader of all headers gives.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import fuzzing
import json_mutations

from quantdispatch import QuantDispatchError
from quantdispatch.registry import headers

WORDS = ("dtype", "shape", "data_offsets", "__metadata__", "F32", "BF16", "I32", "F4", "F8_E4M3", "BOOL", "x.weight")
FILE = Path(tempfile.mkdtemp(prefix="fuzz-headers-")) / "model.safetensors"


def mutate(document: Any, chance: random.Random) -> Any:
    return json_mutations.mutate(document, chance, WORDS)


def check(data: bytes) -> None:
    """``data`` is a header; or, behind a zero byte, a whole file."""
    if data[:1] == b"\0":
        FILE.write_bytes(data[1:])
        headers.read_header(str(FILE))
        return
    quick = _entries(data, headers.scan_header)
    slow = _entries(data, lambda text, nbytes: None)
    if quick != slow:
        raise fuzzing.Unacceptable(f"two readers of one header: {quick} and {slow}")


def _entries(text: bytes, scan: Any) -> Any:
    """The tensors with their places, or the error's message, with ``scan`` in place of the quick reader."""
    usual, headers.scan_header = headers.scan_header, scan
    try:
        header = headers.parse_header(text, None, "f", local=True)
    except QuantDispatchError as error:
        fuzzing.printable(error)
        return str(error)
    finally:
        headers.scan_header = usual
    end = header.base
    for entry in header:
        if entry.start != end or entry.end < entry.start:
            raise fuzzing.Unacceptable(f"{entry} begins elsewhere than at byte {end}")
        end = entry.end
    return [(entry.name, entry.dtype, entry.shape, entry.start, entry.end) for entry in header]
