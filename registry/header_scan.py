"""A quick way through headers and indexes that are spelled as every known writer spells them.

Parsing JSON into an object for each tensor, and looking at each, takes most of the time that a plan of a large
checkpoint takes. The usual spelling can be cut into tensors at once. What stands between names, kinds and numbers is
compared with what must stand there, so that what is accepted is JSON that says the same to any parser. Whatever is
spelled differently, or wrong, gives ``None`` and goes through the JSON parser, which alone decides about errors.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from .stored_tensors import Stored, TensorKind

_SPACE = " \t\n\r"
_METADATA = '{"__metadata__":{'
_SIZE = "(?:0|[1-9][0-9]{0,17})"
_KIND = re.compile(rf'([^".]*)":\{{"dtype":"([A-Z0-9_]+)","shape":\[((?:{_SIZE}(?:,{_SIZE})*)?)\],"data_offsets":')
_LIMIT = 2**63
_PRINTABLE = bytes(range(0x20, 0x7F))
#: bytes of an index that are taken apart together
_PIECE = 1 << 14
_WEIGHT_MAP = re.compile(rb'"weight_map"\s*:\s*\{\s*(?=")')

Columns = tuple[list[str], list[TensorKind], Sequence[int], dict[str, Stored]]


def scan_header(text: bytes, nbytes: Callable[[str, tuple[int, ...]], int | None]) -> Columns | None:
    """Modules, kinds and data bounds of a header whose tensors stand in the order of their data, and what each module
    stores.

    ``nbytes``: the size of a tensor of that dtype and shape, ``None`` where there is none such.
    """
    tensors = _tensors_of(text)
    if tensors is None:
        return None
    modules: list[str] = []
    found: list[TensorKind] = []
    bounds = [0]
    kinds: dict[str, TensorKind] = {}
    nothing = Stored({})
    stored: dict[str, Stored] = {}
    end, start_text = 0, "0"
    # NAME":{"dtype":"I32","shape":[4,2],"data_offsets":[0,32
    for tensor in tensors.split(']},"'):
        whole, _, span = tensor.rpartition("[")
        module, dot, written = whole.rpartition(".")
        try:
            kind = kinds[written]
        except KeyError:
            known = _kind(dot, written, nbytes)
            if known is None:
                return None
            kind = kinds[written] = known
        end += kind.nbytes
        end_text = str(end)
        if span != f"{start_text},{end_text}":
            return None
        start_text = end_text
        modules.append(module)
        found.append(kind)
        bounds.append(end)
        stored[module] = stored.get(module, nothing)[kind]
    if end >= _LIMIT or not _printable("".join(stored)) or '"' in "".join(stored):
        return None
    if "" in stored or any(one.repeated for one in {id(one): one for one in stored.values()}.values()):
        return None
    return modules, found, array("q", bounds), stored


def _tensors_of(text: bytes) -> str | None:
    """The header between the name of its first tensor and the last number of its last one."""
    text = text.rstrip(_SPACE.encode())
    if b"\\" in text or not text.endswith(b"]}}"):
        return None
    try:
        body = text.decode()
        start = 2
        if body.startswith(_METADATA):
            end = body.index("}") + 1
            if not isinstance(json.loads(body[len(_METADATA) - 1 : end]), dict):
                return None
            start = end + 2
    except (ValueError, RecursionError):
        return None
    return body[start:-3] if body[start - 2 : start] in ('{"', ',"') else None


def _kind(dot: str, written: str, nbytes: Callable[[str, tuple[int, ...]], int | None]) -> TensorKind | None:
    match = _KIND.fullmatch(written)
    if match is None or not dot or not _printable(match[1]):
        return None
    shape = tuple(map(int, match[3].split(","))) if match[3] else ()
    size = nbytes(match[2], shape)
    return None if size is None else TensorKind(dot + match[1], match[2], shape, size)


def _printable(text: str) -> bool:
    """Is it printable ASCII? ``str.isprintable`` takes several times as long."""
    return not text.encode().translate(None, _PRINTABLE)


def scan_weight_map(text: bytes) -> dict[str, list[str]] | None:
    """The ``weight_map`` of an index turned round: the tensors of each shard, in the order of the index.

    ``None`` also for one without a tensor. The names are those of the file, character by character: for the caller to
    compare with the headers of the shards.
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
    """``"NAME": "SHARD",`` again and again, with a comma at the end unless these are the ``last`` ones."""
    pieces = text.split('"', 7)
    if len(pieces) < 5 or pieces[0]:
        return False
    shard = pieces[3]
    if len(pieces) == 8:  # at least two: mostly all are in one shard
        following = f'"{pieces[2]}"{shard}"{pieces[4]}"'
        names = text[1:].split(following)
        names[-1] = names[-1].removesuffix("" if last else ",").removesuffix(f'"{pieces[2]}"{shard}"')
        if '"' not in "".join(names):
            placed.setdefault(shard, []).extend(names)
            return pieces[2].strip(_SPACE) == ":" and pieces[4].strip(_SPACE) == "," and _printable(shard)
    return _scan_each(text.split('"'), last, placed)


def _scan_each(pieces: list[str], last: bool, placed: dict[str, list[str]]) -> bool:
    # four pieces a tensor, and what follows the last one
    if len(pieces) % 4 != 1 or pieces[-1] != ("" if last else ","):
        return False
    colons, commas = set(pieces[2::4]), set(pieces[4:-1:4])
    if {piece.strip(_SPACE) for piece in colons} != {":"} or not {piece.strip(_SPACE) for piece in commas} <= {","}:
        return False
    for name, shard in zip(pieces[1::4], pieces[3::4], strict=True):
        placed.setdefault(shard, []).append(name)
    return _printable("".join(set(pieces[3::4])))
