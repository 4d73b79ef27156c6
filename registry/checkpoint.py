"""A checkpoint folder: its config.json and the headers of its safetensors files, without reading any tensor.

Layouts, in the order of preference that transformers has: ``model.safetensors``; ``model.safetensors.index.json`` with
its shards; any ``*.safetensors`` files. What disagrees between index and shards is an error, never a choice.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .config_json import parse_json_file
from .errors import ConfigError, UnreadableCheckpointError
from .header_scan import scan_weight_map
from .headers import read_header, unreadable
from .stored_tensors import Header
from .tensor_table import TensorTable

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".gguf")


@dataclass(frozen=True)
class Checkpoint:
    """``path``: the folder (or hub id). ``config``: the raw config.json. ``tensors``: by full name, in a stable order.

    ``shards``: the files that hold them. ``notes``: what a reader should know and what is no error.
    """

    path: str
    config: Mapping[str, Any]
    tensors: TensorTable
    shards: tuple[str, ...]
    notes: tuple[str, ...] = field(default=())


def open_checkpoint(folder: str | os.PathLike[str]) -> Checkpoint:
    """Open a folder.

    Raises ``UnreadableCheckpointError`` (folder, index or a shard absent, unreadable, truncated, inconsistent, or no
    safetensors weights at all) and ``ConfigError`` (no config.json, or not a JSON object).
    """
    path = Path(folder)
    names = list_folder(path)
    config = read_config(path / CONFIG)
    with collector_paused():
        found = _open_files(path, names, config)
    if not found.tensors:
        raise UnreadableCheckpointError(
            f"{path} has safetensors files without a single tensor", field=found.shards[0], observed="no tensor",
            required="the layers' tensors", remedy="download or write the weights again", code="QD602",
        )  # fmt: skip
    return found


def _open_files(path: Path, names: Sequence[str], config: Mapping[str, Any]) -> Checkpoint:
    if SINGLE in names:
        note = (f"{INDEX} is not used: {SINGLE} comes first",) if INDEX in names else ()
        return assemble(str(path), config, [read_header(str(path / SINGLE))], (SINGLE,), notes=note)
    if INDEX in names:
        return _open_indexed(path, names, config)
    shards = tuple(sorted(name for name in names if name.endswith(".safetensors")))
    if not shards:
        raise no_weights(str(path), names)
    return assemble(str(path), config, [read_header(str(path / shard)) for shard in shards], shards)


def _open_indexed(path: Path, names: Sequence[str], config: Mapping[str, Any]) -> Checkpoint:
    try:
        text = (path / INDEX).read_bytes()
    except OSError as error:
        raise unreadable(path / INDEX, error) from None
    listed = scan_weight_map(text) or {}
    if listed and all(_is_shard(shard) and shard in names for shard in listed):
        shards = tuple(sorted(listed))
        headers = [read_header(str(path / shard)) for shard in shards]
        if all(_holds(header, listed[shard]) for shard, header in zip(shards, headers, strict=True)):
            return assemble(str(path), config, headers, shards, notes=_unused(names, shards))
    # something does not fit: what it is, the index as a whole tells
    weight_map = parse_index(parse_json(text, INDEX), str(path / INDEX))
    shards = tuple(sorted(set(weight_map.values())))
    for shard in shards:
        if shard not in names:
            raise missing_shard(str(path), shard, weight_map)
    headers = [read_header(str(path / shard)) for shard in shards]
    return assemble(str(path), config, headers, shards, weight_map, _unused(names, shards))


def _holds(header: Header, listed: Sequence[str]) -> bool:
    """Does the file hold the tensors that an index lists for it, and no others?"""
    return len(header) == len(listed) and set(header.names) == set(listed)


def _unused(names: Sequence[str], shards: Sequence[str]) -> tuple[str, ...]:
    unused = sorted(n for n in names if n.endswith(".safetensors") and n not in shards)
    return (f"not in {INDEX} and not read: {', '.join(unused)}",) if unused else ()


@contextmanager
def collector_paused() -> Iterator[None]:
    """Without cyclic garbage collection: building hundreds of thousands of objects that all stay and hold no cycles, it
    takes as long as the work itself."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def has_weights(folder: Path) -> bool:
    """Does the folder hold, or claim to hold, weights in any format? One with only a config.json can be planned too."""
    suffixes = (".safetensors", *_PICKLED)
    return any(name == INDEX or name.endswith(suffixes) for name in list_folder(folder))


def list_folder(path: Path) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError as error:
        raise unreadable(path, error) from None


def read_config(path: Path) -> Mapping[str, Any]:
    """A config.json as it stands. Raises ``ConfigError`` when it is absent or not a JSON object."""
    if not os.path.lexists(path):
        there = [name for name in list_folder(path.parent) if not name.startswith(".")]
        raise ConfigError(
            f"there is no {path.name} in {path.parent}", field=path.name,
            observed=_listed(there, "file") if there else "an empty folder", required=path.name,
            remedy="give a checkpoint folder that has one, or the file itself", code="QD501",
        )  # fmt: skip
    return parse_json_file(path)


def parse_json(text: bytes, name: str) -> Any:
    try:
        return json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConfigError(
            f"{name} is not JSON: {reason}", field=name, observed=reason, required="JSON in UTF-8", code="QD502"
        ) from None


def parse_index(index: Any, file: str) -> dict[str, str]:
    """The ``weight_map`` of an index: tensor name to shard. A shard is a plain file name, never a path elsewhere."""
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise UnreadableCheckpointError(
            f"{file} has no weight_map", field="weight_map",
            observed="an empty object" if weight_map == {} else type(weight_map).__name__,
            required="an object of tensor names and shard files", remedy="write the index again", code="QD603",
        )  # fmt: skip
    try:
        shards = set(weight_map.values())
    except TypeError:  # something that is not even hashable, let alone a name
        shards = {""}
    bad = {shard for shard in shards if not _is_shard(shard)}
    if bad:
        tensor, shard = next((t, s) for t, s in weight_map.items() if not isinstance(s, str) or s in bad)
        raise UnreadableCheckpointError(
            f"{file} places tensor {tensor} in something that is not a safetensors file of the folder",
            field=f"weight_map.{tensor}", observed=shard, required="NAME.safetensors", remedy="write the index again",
            code="QD603",
        )  # fmt: skip
    return weight_map


def _is_shard(name: Any) -> bool:
    return isinstance(name, str) and name.endswith(".safetensors") and name == os.path.basename(name)


def assemble(
    path: str,
    config: Mapping[str, Any],
    headers: Sequence[Header],
    shards: tuple[str, ...],
    weight_map: Mapping[str, str] | None = None,
    notes: tuple[str, ...] = (),
) -> Checkpoint:
    """Merge the shards' headers and compare them with the index, if there is one."""
    tensors = TensorTable(headers)
    if tensors.repeated:
        raise _duplicate(headers)
    if weight_map is not None:
        notes = (*notes, *_compare_index(tensors, headers, shards, weight_map, path))
    return Checkpoint(path, config, tensors, shards, notes)


def _duplicate(headers: Sequence[Header]) -> UnreadableCheckpointError:
    seen: dict[str, str] = {}
    names = []
    files: tuple[str, str] = ("", "")
    for header in headers:
        for name in header.names:
            if name in seen:
                names.append(name)
                files = (os.path.basename(seen[name]), os.path.basename(header.file))
            seen[name] = header.file
    return UnreadableCheckpointError(
        f"{_listed(names)} stored in two files, {files[0]} and {files[1]}", field=names[0],
        observed=f"{files[0]} and {files[1]}", required="one file for each tensor",
        remedy="remove the file that does not belong to the checkpoint, or add an index that lists its shards",
        code="QD605",
    )  # fmt: skip


def _compare_index(
    tensors: TensorTable,
    headers: Sequence[Header],
    shards: tuple[str, ...],
    weight_map: Mapping[str, str],
    path: str,
) -> tuple[str, ...]:
    extra: list[str] = []
    for shard, header in zip(shards, headers, strict=True):
        odd = [name for name in header.names if weight_map.get(name) != shard]
        for name in odd:
            if name in weight_map:
                raise UnreadableCheckpointError(
                    f"{INDEX} in {path} places tensor {name} in another shard than it is in", field=name,
                    observed=weight_map[name], required=shard, remedy="write the index again", code="QD603",
                )  # fmt: skip
        extra += odd
    if len(tensors) - len(extra) < len(weight_map):
        absent = [name for name in weight_map if name not in tensors]
        raise UnreadableCheckpointError(
            f"{INDEX} in {path} lists {_listed(absent)} that {weight_map[absent[0]]} does not hold", field=absent[0],
            observed=f"{len(weight_map) - len(absent)} of {len(weight_map)} listed tensors", required="all of them",
            remedy="download the shard again, or write the index again", code="QD603",
        )  # fmt: skip
    # They are read all the same: a tensor that is there must have an owner, whatever the index forgot.
    return (f"{INDEX} does not list {_listed(extra)} found in its shards",) if extra else ()


def missing_shard(path: str, shard: str, weight_map: Mapping[str, str]) -> UnreadableCheckpointError:
    count = sum(1 for file in weight_map.values() if file == shard)
    return UnreadableCheckpointError(
        f"{INDEX} in {path} names a shard that is not there: {shard} ({count} tensors)", field="weight_map",
        observed=shard, required="a file of the folder", remedy="download the missing shard", code="QD604",
    )  # fmt: skip


def no_weights(path: str, names: Sequence[str]) -> UnreadableCheckpointError:
    pickled = [name for name in names if name.endswith(_PICKLED)]
    if pickled:
        return UnreadableCheckpointError(
            f"{path} has no safetensors files, only {_listed(pickled, 'file')}", field=SINGLE,
            observed=_listed(pickled, "file"), required=SINGLE,
            remedy="convert the weights to safetensors: other formats are not read", code="QD602",
        )  # fmt: skip
    return UnreadableCheckpointError(
        f"{path} has no safetensors files", field=SINGLE,
        observed=_listed(names, "file") if names else "an empty folder", required=SINGLE,
        remedy="download the weights, or plan its config.json alone", code="QD602",
    )  # fmt: skip


def _listed(names: Sequence[str], noun: str = "tensor") -> str:
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"{noun} {shown}" if len(names) == 1 else f"{len(names)} {noun}s ({shown})"
