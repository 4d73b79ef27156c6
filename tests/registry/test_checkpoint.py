"""Checkpoint folders and headers: layouts that are read, and everything that is wrong with a file, named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tiny_plans as tiny
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quantdispatch.registry.checkpoint import INDEX, open_checkpoint
from quantdispatch.registry.errors import CheckpointError, ConfigError, QuantDispatchError, UnreadableCheckpointError
from quantdispatch.registry.headers import MAX_HEADER_BYTES, parse_header, read_header

ONE = {"a.weight": ("BF16", [4, 8]), "b.weight": ("F32", [2])}


def raw(path: Path, header: Any, data: int = 0) -> Path:
    """A file with any header at all, and ``data`` bytes after it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(data))
    return path


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


# ------------------------------------------------------------------------------------------------------- what is read


def test_single_file(tmp_path: Path) -> None:
    folder = tiny.folder(tmp_path / "c", {"x": 1}, ONE, {"b.weight": b"12345678"})
    opened = open_checkpoint(folder)
    assert opened.config == {"x": 1} and opened.shards == ("model.safetensors",) and not opened.notes
    first, second = opened.tensors["a.weight"], opened.tensors["b.weight"]
    assert (first.name, first.dtype, first.shape, first.nbytes) == ("a.weight", "BF16", (4, 8), 64)
    assert first.read() == bytes(64) and second.read() == b"12345678"
    assert second.end == os.path.getsize(folder / "model.safetensors")


def test_index_and_shards(tmp_path: Path) -> None:
    folder = tiny.sharded(
        tmp_path / "c", {}, {"m-2.safetensors": {"a": ("I8", [3])}, "m-1.safetensors": {"b": ("I8", [5])}}
    )
    (folder / "other.safetensors").write_bytes(b"never read")
    opened = open_checkpoint(str(folder))
    assert opened.shards == ("m-1.safetensors", "m-2.safetensors") and set(opened.tensors) == {"a", "b"}
    assert opened.tensors["a"].file.endswith("m-2.safetensors")
    assert len(opened.notes) == 1 and "other.safetensors" in opened.notes[0]


def test_tensor_that_the_index_forgot_is_read_and_told(tmp_path: Path) -> None:
    shards = {"m.safetensors": {"a": ("I8", [3]), "b": ("I8", [5])}}
    opened = open_checkpoint(tiny.sharded(tmp_path / "c", {}, shards, {"a": "m.safetensors"}))
    assert set(opened.tensors) == {"a", "b"} and "tensor b" in opened.notes[0]


def test_several_files_without_an_index(tmp_path: Path) -> None:
    folder = tiny.folder(tmp_path / "c", {}, {})
    (folder / "model.safetensors").unlink()
    tiny.save(folder / "x.safetensors", {"a": ("I8", [3])})
    tiny.save(folder / "y.safetensors", {"b": ("I8", [3])})
    assert set(open_checkpoint(folder).tensors) == {"a", "b"}


def test_single_file_comes_before_an_index_as_in_transformers(tmp_path: Path) -> None:
    folder = tiny.sharded(tmp_path / "c", {}, {"m.safetensors": {"a": ("I8", [3])}})
    tiny.save(folder / "model.safetensors", {"whole": ("I8", [3])})
    opened = open_checkpoint(folder)
    assert set(opened.tensors) == {"whole"} and INDEX in opened.notes[0]


def test_order_of_the_header_is_not_the_order_of_the_data(tmp_path: Path) -> None:
    header = {"__metadata__": {"format": "pt"}, "late": entry("I8", [2], [4, 6]), "early": entry("I8", [4], [0, 4])}
    assert [t.name for t in read_header(str(raw(tmp_path / "f", header, 6)))] == ["early", "late"]


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [("F4", [3, 2], 3), ("F6_E2M3", [4], 3), ("F8_E8M0", [3], 3), ("C64", [1], 8), ("BOOL", [], 1), ("I64", [0, 4], 0)],
)
def test_every_width(tmp_path: Path, dtype: str, shape: list[int], size: int) -> None:
    (tensor,) = read_header(str(raw(tmp_path / "f", {"t": entry(dtype, shape, [0, size])}, size)))
    assert tensor.shape == tuple(shape) and tensor.nbytes == size


# ----------------------------------------------------------------------------------------------------- what is refused

BAD_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda f: f.write_bytes(b""), "too short"),
    "seven-bytes": (lambda f: f.write_bytes(b"1234567"), "too short"),
    "header-longer-than-file": (lambda f: f.write_bytes((10**6).to_bytes(8, "little") + b"{}"), "longer than the file"),
    "header-over-limit": (lambda f: f.write_bytes(b"\xff" * 16), "over the safetensors limit"),
    "header-just-over-limit": (
        lambda f: f.write_bytes((MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{}"), "over the safetensors limit"),
    "pickle": (lambda f: f.write_bytes(b"\x80\x02}q\x00X\x01\x00\x00\x00a" + bytes(99)), "safetensors limit"),
    "not-json": (lambda f: raw(f, b"{'a': 1}"), "not JSON"),
    "not-utf8": (lambda f: raw(f, b'{"\xff": 1}'), "not JSON"),
    "too-deep": (lambda f: raw(f, b"[" * 100_000), "not JSON"),
    "array": (lambda f: raw(f, []), "not a JSON object"),
    "entry-is-no-object": (lambda f: raw(f, {"t": 3}), "malformed entry for tensor t"),
    "no-dtype": (lambda f: raw(f, {"t": {"shape": [1], "data_offsets": [0, 1]}}), "malformed entry for tensor t"),
    "three-offsets": (lambda f: raw(f, {"t": entry(offsets=[0, 8, 9])}, 8), "malformed entry for tensor t"),
    "negative-size": (lambda f: raw(f, {"t": entry(shape=[-2])}, 8), "malformed entry for tensor t"),
    "fractional-size": (lambda f: raw(f, {"t": entry(shape=[2.0])}, 8), "malformed entry for tensor t"),
    "size-is-text": (lambda f: raw(f, {"t": entry(shape=["2"])}, 8), "malformed entry for tensor t"),
    "nested-shape": (lambda f: raw(f, {"t": entry(shape=[[2]])}, 8), "malformed entry for tensor t"),
    "unknown-dtype": (lambda f: raw(f, {"t": entry("Q4")}, 8), "unknown dtype"),
    "half-a-byte": (lambda f: raw(f, {"t": entry("F4", [3], [0, 2])}, 2), "fraction of a byte"),
    "offsets-reversed": (lambda f: raw(f, {"t": entry(offsets=[8, 0])}, 8), "impossible data offsets"),
    "offsets-negative": (lambda f: raw(f, {"t": entry(offsets=[-8, 0])}, 8), "impossible data offsets"),
    "offsets-fractional": (lambda f: raw(f, {"t": entry(offsets=[0.0, 8.0])}, 8), "impossible data offsets"),
    "offsets-text": (lambda f: raw(f, {"t": entry(offsets=["0", "8"])}, 8), "impossible data offsets"),
    "end-fractional": (lambda f: raw(f, {"t": entry(offsets=[0, 8.0])}, 8), "impossible data offsets"),
    "offsets-contradict-shape": (lambda f: raw(f, {"t": entry(shape=[3])}, 8), "contradict the shape of tensor t"),
    "overlap": (lambda f: raw(f, {"t": entry(), "u": entry(offsets=[4, 12])}, 12), "tensor u overlaps t"),
    "same-place": (lambda f: raw(f, {"t": entry(), "u": entry()}, 8), "overlaps"),
    "gap": (lambda f: raw(f, {"t": entry(), "u": entry(offsets=[12, 20])}, 20), "tensor u leaves a gap after t"),
    "gap-at-start": (lambda f: raw(f, {"t": entry(offsets=[4, 12])}, 12), "gap after the header"),
    "same-name-twice": (
        lambda f: raw(f, b'{"t":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},'
                         b'"t":{"dtype":"I8","shape":[1],"data_offsets":[1,2]}}', 2), "gap after the header"),
    "truncated": (
        lambda f: f.write_bytes(tiny.save(f, ONE).read_bytes()[:-1]), "truncated: the data of tensor b.weight"),
    "truncated-to-header": (lambda f: raw(f, {"t": entry()}), "truncated: the data of tensor t"),
    "bytes-left-over": (lambda f: f.write_bytes(tiny.save(f, ONE).read_bytes() + b"!"), "belong to no tensor"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_file(tmp_path: Path, name: str) -> None:
    write, words = BAD_FILES[name]
    folder = tiny.folder(tmp_path / "c", {}, {})
    write(folder / "model.safetensors")
    with pytest.raises(UnreadableCheckpointError) as caught:
        open_checkpoint(folder)
    text = str(caught.value)
    assert words in text and "model.safetensors" in text and "\n" not in text
    assert caught.value.exit_code == 2 and caught.value.remedy


def shard_of_two(folder: Path, weight_map: Any) -> Path:
    shards = {"m-1.safetensors": {"a": ("I8", [1])}, "m-2.safetensors": {"b": ("I8", [1])}}
    return Path(tiny.sharded(folder, {}, shards, weight_map))


def without(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).unlink()
    return folder


def with_file(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder


def doubled(folder: Path) -> Path:
    tiny.folder(folder, {}, {})
    for name in ("x.safetensors", "y.safetensors"):
        tiny.save(folder / name, {"a": ("I8", [1])})
    return without(folder, "model.safetensors")


BOTH = {"a": "m-1.safetensors", "b": "m-2.safetensors"}
BAD_FOLDERS: dict[str, tuple[Callable[[Path], Path], type[QuantDispatchError], str]] = {
    "missing-folder": (lambda p: p / "nowhere", UnreadableCheckpointError, "No such file"),
    "file-for-folder": (lambda p: with_file(p, "f", "{}") / "f", UnreadableCheckpointError, "Not a directory"),
    "no-config": (
        lambda p: without(tiny.folder(p / "c", {}, ONE), "config.json"), ConfigError, "there is no config.json"),
    "config-not-json": (
        lambda p: with_file(tiny.folder(p / "c", {}, ONE), "config.json", "{,}"), ConfigError,
        "config.json is not JSON"),
    "config-array": (lambda p: tiny.folder(p / "c", [], ONE), ConfigError, "no JSON object"),
    "no-weights": (
        lambda p: without(tiny.folder(p / "c", {}, {}), "model.safetensors"), UnreadableCheckpointError,
        "no safetensors files"),
    "pickled-weights": (
        lambda p: with_file(without(tiny.folder(p / "c", {}, {}), "model.safetensors"), "pytorch_model.bin", ""),
        UnreadableCheckpointError, "pytorch_model.bin"),
    "missing-shard": (
        lambda p: without(shard_of_two(p / "c", BOTH), "m-2.safetensors"), UnreadableCheckpointError,
        "names a shard that is not there: m-2.safetensors (1 tensors)"),
    "index-lists-more": (
        lambda p: shard_of_two(p / "c", {**BOTH, "c": "m-2.safetensors"}), UnreadableCheckpointError,
        "tensor c that m-2.safetensors does not hold"),
    "index-misplaces": (
        lambda p: shard_of_two(p / "c", {"b": "m-1.safetensors", "a": "m-2.safetensors"}), UnreadableCheckpointError,
        "places tensor a in another shard"),
    "index-leaves-the-folder": (
        lambda p: shard_of_two(p / "c", {**BOTH, "b": "../m-2.safetensors"}), UnreadableCheckpointError,
        "not a safetensors file of the folder"),
    "index-names-a-pickle": (
        lambda p: shard_of_two(p / "c", {**BOTH, "b": "m.bin"}), UnreadableCheckpointError,
        "not a safetensors file of the folder"),
    "index-names-a-list": (
        lambda p: shard_of_two(p / "c", {**BOTH, "b": ["m-2.safetensors"]}), UnreadableCheckpointError,
        "not a safetensors file of the folder"),
    "index-empty": (lambda p: shard_of_two(p / "c", {}), UnreadableCheckpointError, "no weight_map"),
    "index-not-json": (
        lambda p: with_file(shard_of_two(p / "c", BOTH), INDEX, "nope"), QuantDispatchError, "is not JSON"),
    "no-tensor-at-all": (
        lambda p: tiny.folder(p / "c", {}, {}), UnreadableCheckpointError, "without a single tensor"),
    "tensor-in-two-files": (lambda p: doubled(p / "c"), UnreadableCheckpointError, "tensor a stored in two files"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FOLDERS)
def test_bad_folder(tmp_path: Path, name: str) -> None:
    make, kind, words = BAD_FOLDERS[name]
    folder = make(tmp_path)
    with pytest.raises(kind) as caught:
        open_checkpoint(folder)
    assert words in str(caught.value) and "\n" not in str(caught.value) and caught.value.exit_code == 2


@contextmanager
def unprivileged() -> Iterator[None]:
    """As a user without rights: the administrator's reads are never refused."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX permissions, which this system does not have")
@pytest.mark.parametrize("locked", ["c", "c/model.safetensors", "c/config.json"])
def test_no_permission(tmp_path: Path, locked: str) -> None:
    tiny.folder(tmp_path / "c", {}, ONE)
    for parent in (tmp_path, *tmp_path.parents):
        if parent.owner() == Path(tmp_path).owner() and parent.stat().st_mode & 0o777 == 0o700:
            parent.chmod(0o711)
    (tmp_path / locked).chmod(0)
    with unprivileged(), pytest.raises((UnreadableCheckpointError, ConfigError)) as caught:
        open_checkpoint(tmp_path / "c")
    assert "Permission denied" in str(caught.value) and caught.value.exit_code == 2


def test_reading_notices_a_file_that_was_cut_later(tmp_path: Path) -> None:
    folder = tiny.folder(tmp_path / "c", {}, ONE)
    tensor = open_checkpoint(folder).tensors["b.weight"]
    os.truncate(folder / "model.safetensors", tensor.end - 1)
    with pytest.raises(CheckpointError, match="ends inside tensor b.weight"):
        tensor.read()
    (folder / "model.safetensors").unlink()
    with pytest.raises(UnreadableCheckpointError, match="No such file"):
        tensor.read()


# --------------------------------------------------------------------------------------------------------- properties

NAMES = st.text(st.characters(blacklist_categories=["Cs"]), max_size=12)
TENSORS = st.dictionaries(
    NAMES.filter(lambda n: n != "__metadata__"),
    st.tuples(st.sampled_from(sorted(tiny.BITS)), st.lists(st.integers(0, 5), max_size=3)),
    max_size=8,
)


@given(TENSORS)
def test_what_is_written_is_read(tensors: Any) -> None:
    entries, size = tiny.header(tensors)
    spellings = [json.dumps(entries, separators=s).encode() for s in (None, (",", ":"))]
    both = [parse_header(text, 8 + len(text) + size, "f", local=True) for text in spellings]
    base = [8 + len(text) for text in spellings]
    seen = [
        [(t.name, t.dtype, t.shape, t.start - b, t.end - b) for t in read] for read, b in zip(both, base, strict=True)
    ]
    assert seen[0] == seen[1]
    read = both[0]
    assert {t.name: (t.dtype, list(t.shape)) for t in read} == {name: tuple(t) for name, t in tensors.items()}
    assert sum(t.nbytes for t in read) == size


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.data())
def test_damage_is_refused_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    """Any change of a byte gives an error of ours or a file that is consistent, and never another exception."""
    path = tmp_path / "f.safetensors"
    entries, size = tiny.header(ONE)
    compact = json.dumps({"__metadata__": {"format": "pt"}, **entries}, separators=(",", ":")).encode() + b"  "
    content = bytearray(len(compact).to_bytes(8, "little") + compact + bytes(size))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    try:
        tensors = read_header(str(path))
    except UnreadableCheckpointError as error:
        assert str(path) in str(error)
    else:
        # what is read is what the JSON says
        length = int.from_bytes(path.read_bytes()[:8], "little")
        header = json.loads(path.read_bytes()[8 : 8 + length])
        header.pop("__metadata__", None)
        assert {t.name: list(t.shape) for t in tensors} == {name: t["shape"] for name, t in header.items()}
        assert all(0 <= t.start <= t.end <= path.stat().st_size for t in tensors)
