"""A quick way through headers and indexes that are spelled as every known writer spells them.

Parsing JSON into an object for each tensor, and looking at each, takes most of the time that a plan of a large
checkpoint takes. The usual spelling can be taken apart at its quotation marks, column by column; every piece between
them is compared with what must stand there, so that what is accepted is JSON that says the same to any parser. Whatever
is spelled differently, or wrong, gives ``None`` and goes through the JSON parser, which alone decides about errors.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from .stored_tensors import TensorKind

_SPACE = " \t\n\r"
_METADATA = '{"__metadata__":{'
_SIZE = "(?:0|[1-9][0-9]{0,17})"
_SHAPE = re.compile(rf":\[((?:{_SIZE}(?:,{_SIZE})*)?)\],")
_LIMIT = 2**63
#: bytes of an index that are taken apart together
_PIECE = 1 << 16
_WEIGHT_MAP = re.compile(rb'"weight_map"\s*:\s*\{\s*(?=")')

Columns = tuple[list[str], list[TensorKind], Sequence[int]]


def scan_header(text: bytes, nbytes: Callable[[str, tuple[int, ...]], int | None]) -> Columns | None:
    """Names, kinds and data bounds of a header whose tensors stand in the order of their data.

    ``nbytes``: the size of a tensor of that dtype and shape, ``None`` where there is none such.
    """
    body = _tensors_of(text)
    if body is None:
        return None
    # "NAME":{"dtype":"I32","shape":[4,2],"data_offsets":[0,32]},"NAME":... are ten pieces a tensor
    pieces = body.split('"')
    count = len(pieces) // 10
    if len(pieces) != 10 * count + 1 or pieces[0]:
        return None
    for place, piece in ((2, ":{"), (3, "dtype"), (4, ":"), (6, ","), (7, "shape"), (9, "data_offsets")):
        if pieces[place::10].count(piece) != count:
            return None
    names = pieces[1::10]
    written = list(zip(pieces[5::10], pieces[8::10], strict=True))
    kinds = {kind: _kind(*kind, nbytes) for kind in set(written)}
    found = list(map(kinds.__getitem__, written))
    if None in kinds.values() or not plain_names(names):
        return None
    sizes = {kind: known.nbytes for kind, known in kinds.items() if known is not None}
    bounds = list(accumulate(map(sizes.__getitem__, written), initial=0))
    if bounds[-1] >= _LIMIT or '"'.join(pieces[10::10]) != _offsets(bounds):
        return None
    return names, found, array("q", bounds)  # type: ignore[return-value]  # no kind is None


def _tensors_of(text: bytes) -> str | None:
    """The header from its first tensor on."""
    if b"\\" in text:
        return None
    try:
        body = text.decode()
        if not body.startswith(_METADATA):
            return body[1:].rstrip(_SPACE) if body.startswith('{"') else None
        start = body.index("}") + 1
        if not isinstance(json.loads(body[len(_METADATA) - 1 : start]), dict) or body[start : start + 2] != ',"':
            return None
    except (ValueError, RecursionError):
        return None
    return body[start + 1 :].rstrip(_SPACE)


def _kind(dtype: str, shape: str, nbytes: Callable[[str, tuple[int, ...]], int | None]) -> TensorKind | None:
    match = _SHAPE.fullmatch(shape)
    if match is None:
        return None
    sizes = tuple(map(int, match[1].split(","))) if match[1] else ()
    size = nbytes(dtype, sizes)
    return None if size is None else TensorKind(dtype, sizes, size)


def _offsets(bounds: Sequence[int]) -> str:
    """The last piece of each tensor, as it must be for data that leave no gap: ``:[0,32]},":[32,48]}}``."""
    digits = list(map(str, bounds))
    return ":[" + ']},":['.join(map(",".join, zip(digits, digits[1:], strict=False))) + "]}}"


def plain_names(names: list[str]) -> bool:
    """Are the names different, none of them ``__metadata__``, and free of characters that JSON wants escaped?"""
    different = set(names)
    return len(different) == len(names) and "__metadata__" not in different and "".join(names).isprintable()


def scan_weight_map(text: bytes) -> dict[str, list[str]] | None:
    """The ``weight_map`` of an index turned round: the tensors of each shard, in the order of the index.

    ``None`` also for one without a tensor. Whether a tensor is named twice is for the caller to see.
    """
    opening = _WEIGHT_MAP.search(text)
    if opening is None or b"\\" in text or text.count(b'"weight_map"') != 1:
        return None
    start, end = opening.end(), text.find(b"}", opening.end())
    try:
        rest: Any = json.loads((text[:start] + text[end:]).decode("utf-8-sig"))
        if not isinstance(rest, dict) or rest.get("weight_map") != {}:
            return None
        placed: dict[str, list[str]] = {}
        while start < end:  # a piece at a time: all at once would fill the caches, and memory, with strings
            cut = text.find(b'",', start + _PIECE, end)
            cut = end if cut < 0 else cut + 2
            if not _scan_entries(text[start:cut].decode().strip(_SPACE), cut == end, placed):
                return None
            start = cut
    except (ValueError, RecursionError):
        return None
    return placed


def _scan_entries(text: str, last: bool, placed: dict[str, list[str]]) -> bool:
    # "NAME": "SHARD", are four pieces a tensor, and what follows the last one is a fifth
    pieces = text.split('"')
    if len(pieces) % 4 != 1 or pieces[0] or pieces[-1] != ("" if last else ","):
        return False
    colons, commas = set(pieces[2::4]), set(pieces[4:-1:4])
    if {piece.strip(_SPACE) for piece in colons} != {":"} or not {piece.strip(_SPACE) for piece in commas} <= {","}:
        return False
    names, shards = pieces[1::4], pieces[3::4]
    different = set(shards)
    if not "".join((*names, *different)).isprintable():
        return False
    if len(different) == 1:
        placed.setdefault(shards[0], []).extend(names)
    else:
        for name, shard in zip(names, shards, strict=True):
            placed.setdefault(shard, []).append(name)
    return True
