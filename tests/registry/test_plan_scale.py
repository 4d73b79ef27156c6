"""Large checkpoints: what is read by columns says what the JSON says, and what is decided once holds for each layer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_plans as tiny
from hypothesis import example, given, settings
from hypothesis import strategies as st
from planning import error, soft, tiny_registry  # noqa: F401

from benchmarks import plan_scale
from quantdispatch.registry import checkpoint as checkpoint_module
from quantdispatch.registry import headers as headers_module
from quantdispatch.registry.checkpoint import INDEX, open_checkpoint
from quantdispatch.registry.errors import CheckpointError, PlanError, UnreadableCheckpointError
from quantdispatch.registry.header_scan import scan_header, scan_weight_map
from quantdispatch.registry.headers import parse_header
from quantdispatch.registry.layers import Layers
from quantdispatch.registry.plan import plan
from quantdispatch.registry.stored_tensors import Header

# --------------------------------------------------------------------------------- two ways to read, one result


def size_or_none(dtype: str, shape: tuple[int, ...]) -> int | None:
    return headers_module._size_or_none(dtype, shape)


def columns(header: Header) -> list[tuple[Any, ...]]:
    return [(e.name, e.dtype, e.shape, e.start, e.end, e.nbytes) for e in header]


def read(text: bytes, size: int | None, quick: bool) -> Any:
    """What a header says, or the error, with the quick way or without it."""
    with pytest.MonkeyPatch.context() as patch:
        if not quick:
            patch.setattr(headers_module, "scan_header", lambda *_: None)
        try:
            return columns(parse_header(text, size, "f", local=True))
        except UnreadableCheckpointError as problem:
            return str(problem)


def compact(entries: Any, metadata: Any = None) -> bytes:
    whole = entries if metadata is None else {"__metadata__": metadata, **entries}
    return json.dumps(whole, separators=(",", ":"), ensure_ascii=False).encode()


ENTRIES, DATA = tiny.header({**tiny.int4("m.x"), **tiny.int4("m.y"), **tiny.dense("m.z"), "m.none": ("F32", [0, 3])})
USUAL = compact(ENTRIES, {"format": "pt"})


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}, {"a": "b", "c": "{"}])
@pytest.mark.parametrize("pad", ["", "   ", "\n"])
def test_the_usual_spelling_is_read_quickly(metadata: Any, pad: str) -> None:
    text = compact(ENTRIES, metadata) + pad.encode()
    assert scan_header(text, size_or_none) is not None
    assert read(text, 8 + len(text) + DATA, True) == read(text, 8 + len(text) + DATA, False)


def swapped(old: str, new: str, count: int = 1) -> bytes:
    text = USUAL.decode()
    assert old in text
    return text.replace(old, new, count).encode()


#: JSON that says the same in an unusual way, or something else, or is none
UNUSUAL: dict[str, bytes] = {
    "spaces": json.dumps(ENTRIES).encode(),
    "space-in-an-entry": swapped('"dtype":"I32"', '"dtype": "I32"'),
    "keys-in-another-order": compact({n: dict(reversed(e.items())) for n, e in ENTRIES.items()}),
    "one-key-more": compact({n: {**e, "more": 1} for n, e in ENTRIES.items()}),
    "escaped-name": swapped("m.x.weight_packed", "m.\\u0078.weight_packed"),
    "quote-in-a-name": swapped("m.x.weight_packed", 'm.\\"x.weight_packed'),
    "control-character": swapped("m.x.weight_packed", "m.\tx.weight_packed"),
    "another-control-character": swapped("m.x.weight_packed", "m.\x01x.weight_packed"),
    "letters-of-other-scripts": swapped("m.x.weight_packed", "m.ж.weight_packed"),
    "name-twice": swapped("m.y.weight_packed", "m.x.weight_packed"),
    "metadata-later": compact({**ENTRIES, "__metadata__": {"format": "pt"}}),
    "metadata-with-objects": compact(ENTRIES, {"a": {"b": "c"}}),
    "metadata-broken": swapped('"format":"pt"', '"format":pt'),
    "tensor-called-metadata": swapped("m.x.weight_packed", "__metadata__"),
    "leading-zero": swapped("[64,8]", "[064,8]"),
    "negative": swapped("[64,8]", "[-64,8]"),
    "fraction": swapped("[64,8]", "[64.0,8]"),
    "no-size": swapped("[64,8]", "[64,]"),
    "huge": swapped("[64,8]", f"[{'9' * 19},8]"),
    "huge-product": swapped("[64,8]", "[999999999999999999,999999999999999999]"),
    "unknown-dtype": swapped('"I32"', '"Q4"'),
    "half-a-byte": swapped('"I32","shape":[64,8]', '"F4","shape":[3]'),
    "offsets-shifted": swapped('"data_offsets":[0,', '"data_offsets":[1,'),
    "offsets-with-a-zero": swapped('"data_offsets":[0,', '"data_offsets":[00,'),
    "one-offset": swapped('"data_offsets":[0,2048]', '"data_offsets":[2048]'),
    "offsets-moved-to-the-next": swapped(
        '"data_offsets":[0,2048]},"m.x.weight_scale":{"dtype":"BF16","shape":[64,2],"data_offsets":[2048,2304]',
        '"data_offsets":[0]},"m.x.weight_scale":{"dtype":"BF16","shape":[64,2],"data_offsets":[2048,2048,2304]'),
    "three-offsets": swapped('"data_offsets":[0,2048]', '"data_offsets":[0,2048,2048]'),
    "no-comma": swapped('},"m.y.weight_packed"', '}"m.y.weight_packed"'),
    "comma-at-the-end": USUAL[:-1] + b",}",
    "brace-missing": USUAL[:-1],
    "brace-more": USUAL + b"}",
    "something-after": USUAL + b" x",
    "something-before": b" " + USUAL,
    "bom": b"\xef\xbb\xbf" + USUAL,
    "not-utf8": USUAL.replace(b"m.x", b"m.\xff"),
    "empty": b"{}",
    "only-metadata": b'{"__metadata__":{}}',
    "nothing": b"",
    "entry-is-no-object": swapped('{"dtype":"I32","shape":[64,8],"data_offsets":[0,2048]}', "[0,2048]"),
    "order-of-the-data": compact(dict(reversed(ENTRIES.items()))),
}  # fmt: skip


@pytest.mark.parametrize("name", UNUSUAL)
def test_the_json_parser_decides_about_every_other_spelling(name: str) -> None:
    text = UNUSUAL[name]
    for size in (8 + len(text) + DATA, None):
        assert read(text, size, True) == read(text, size, False)


@pytest.mark.parametrize("change", [-1, 1, -DATA])
def test_the_size_of_the_file_counts_either_way(change: int) -> None:
    size = 8 + len(USUAL) + DATA + change
    assert isinstance(read(USUAL, size, True), str) and read(USUAL, size, True) == read(USUAL, size, False)


@settings(max_examples=200)
@given(st.data())
def test_damaged_headers_read_the_same_both_ways(data: st.DataObject) -> None:
    text = bytearray(USUAL)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(text) - 1))
        kind = data.draw(st.sampled_from(["change", "insert", "delete", "copy"]))
        if kind == "delete":
            del text[place]
        elif kind == "copy":
            end = data.draw(st.integers(place, min(len(text), place + 90)))
            text[place:place] = text[place:end]
        else:
            byte = data.draw(st.sampled_from(b'"{}[]:,01 \\x'))
            text[place : place + (kind == "change")] = bytes([byte])
    size = 8 + len(text) + DATA
    assert read(bytes(text), size, True) == read(bytes(text), size, False)


# ------------------------------------------------------------------------------------------------------- the index


def turned(weight_map: Any) -> dict[str, list[str]]:
    placed: dict[str, list[str]] = {}
    for name, shard in weight_map.items():
        placed.setdefault(shard, []).append(name)
    return placed


MAP = {f"m.{i}.{t}": f"s-{i // 30}.safetensors" for i in range(300) for t in ("weight_packed", "weight_scale")}
MIXED = {name: f"s-{place % 3}.safetensors" for place, name in enumerate(MAP)}


@pytest.mark.parametrize("weight_map", [MAP, MIXED, dict(list(MAP.items())[:1])])
@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_an_index_is_turned_round(weight_map: Any, indent: Any) -> None:
    index = {"metadata": {"total_size": 5}, "weight_map": weight_map}
    for text in (json.dumps(index, indent=indent), json.dumps(dict(reversed(index.items())), indent=indent) + "\n"):
        assert scan_weight_map(text.encode()) == turned(weight_map)
        assert scan_weight_map(b"\xef\xbb\xbf" + text.encode()) == turned(weight_map)


@settings(max_examples=200)
@given(st.data())
@example(None)
def test_a_damaged_index_is_read_as_json_or_not_at_all(data: st.DataObject | None) -> None:
    small = {"metadata": {}, "weight_map": {"a": "s-0", "b": "s-0", "c": "s-1", "d": "s-0", "e": "s-0"}}
    text = bytearray(json.dumps(small, indent=2).encode())
    for _ in range(0 if data is None else data.draw(st.integers(1, 3))):
        assert data is not None
        place = data.draw(st.integers(0, len(text) - 1))
        kind = data.draw(st.sampled_from(["change", "insert", "delete", "copy"]))
        if kind == "delete":
            del text[place]
        elif kind == "copy":
            text[place:place] = text[place : data.draw(st.integers(place, len(text)))]
        else:
            text[place : place + (kind == "change")] = bytes([data.draw(st.sampled_from(b'"{}[]:, abs-0\\\n'))])
    found = scan_weight_map(bytes(text))
    if found is not None:
        pairs = json.loads(text.decode("utf-8-sig"), object_pairs_hook=list, strict=False)
        (listed,) = (value for key, value in pairs if key == "weight_map")
        assert sorted((name, shard) for shard, names in found.items() for name in names) == sorted(map(tuple, listed))


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[]", b'{"weight_map": {}}', b'{"weight_map": 3}', b'{"metadata": {"weight_map": {"a": "s"}}}',
        b'{"metadata": {"weight_map": {"a": "s"}}, "weight_map": {}}', b'{"weight_map": {"a": ["s"]}}',
        b'{"weight_map": {"a": "s",}}', b'{"weight_map": {"a": "s"}', b'{"weight_map": {"a": "s"} x}',
        b'{"weight_map": {"a": "s\\t"}}', b'{"weight_map": {"a": "s" "b": "s"}}', b'{"weight_map": {"a"; "s"}}',
        b'{"weight_map": {"\xff": "s"}}',
    ],
)  # fmt: skip
def test_any_other_index_is_left_to_the_parser(text: bytes) -> None:
    assert scan_weight_map(text) is None


# ------------------------------------------------------------------------------- a model in small, planned whole


@pytest.fixture(scope="module", params=plan_scale.LAYOUTS)
def kimi(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kimi")
    assert plan_scale.write(folder, layers=3, experts=12, layout=request.param) > 200
    return folder


def document(folder: Path, quick: bool, **options: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        if not quick:
            patch.setattr(headers_module, "scan_header", lambda *_: None)
            patch.setattr(checkpoint_module, "scan_weight_map", lambda *_: None)
        return plan(folder, strict=False, **options).to_json()


@pytest.mark.parametrize("options", [{}, {"tensor_parallel": 4}])
def test_a_model_of_experts(kimi: Path, options: Any) -> None:
    result = plan(kimi, **options)
    kinds = {(layer.kind, layer.scheme, layer.group) for layer in result.layers.values()}
    assert kinds == {("moe", "wNa16_int", "group_0"), ("linear", "dense", None), ("lm_head", "dense", None),
                     ("embedding", "dense", None)}  # fmt: skip
    assert sum(layer.kind == "moe" for layer in result.layers.values()) == 2 * 12 * 3
    assert not [problem for problem in result.problems if problem.level == "warning"]
    assert document(kimi, True, **options) == document(kimi, False, **options)


def test_layers_are_in_natural_order(kimi: Path) -> None:
    names = [name for name in plan(kimi).layers if ".1.mlp.experts." in name and "up_proj" in name]
    assert names == [f"model.layers.1.mlp.experts.{i}.up_proj" for i in range(12)]


# ----------------------------------------------------------------------------------- alike, and yet each its own


def experts(count: int, n: int = 64, k: int = 64) -> dict[str, Any]:
    return tiny.layers(*(f"m.layers.0.mlp.experts.{i}.up_proj" for i in range(count)), n=n, k=k)


def test_each_layer_has_its_own_name_tensors_and_error(tmp_path: Path) -> None:
    tensors = {name: spec for name, spec in experts(4).items() if not name.endswith("weight_scale")}
    result = soft(tmp_path, tiny.config(ignore=()), tensors)
    assert isinstance(result.layers, Layers) and [e.layer for e in result.errors] == list(result.layers)
    for name, layer in result.layers.items():
        assert layer.name == name and result.layers[name] is layer
        assert set(layer.tensors) == {"weight_packed", "weight_shape"}
        assert all(entry.name == f"{name}.{local}" for local, entry in layer.tensors.items())
        assert isinstance(layer.error, CheckpointError) and layer.error.layer == name and name in str(layer.error)
        with pytest.raises(KeyError):
            layer.tensors["weight_scale"]
    (group,) = result.summary
    assert group.first is result.layers["m.layers.0.mlp.experts.0.up_proj"] and group.names == tuple(result.layers)
    with pytest.raises(PlanError, match="4 of 4 layers do not resolve: .* \\(3 more layers fail alike\\)"):
        plan(tmp_path / "c")


def test_a_router_is_no_linear(tmp_path: Path) -> None:
    """Its class keeps the weight for itself, so that no target means it and nobody has to ignore it."""
    router = tiny.dense("m.layers.0.mlp.gate")
    result = soft(tmp_path / "linear", tiny.config(ignore=()), {**experts(2), **router})
    assert list(result.layers)[-1] == "m.layers.0.mlp.gate" and "stored dense" in str(result.errors)
    router["m.layers.0.mlp.gate.e_score_correction_bias"] = ("F32", [64])
    assert len(soft(tmp_path / "router", tiny.config(ignore=()), {**experts(2), **router}).layers) == 2


def test_one_layer_whose_values_contradict_its_headers_is_found(tmp_path: Path) -> None:
    tensors = experts(40)
    values = tiny.shapes(tensors)
    odd = "m.layers.0.mlp.experts.17.up_proj"
    values[f"{odd}.weight_shape"] = tiny.shape_bytes(64, 128)
    result = plan(tiny.folder(tmp_path / "c", tiny.config(ignore=()), tensors, values), strict=False)
    assert [e.layer for e in result.errors] == [odd] and error(result, odd).field in ("weight_packed", "weight_shape")


def test_values_that_stand_together_and_apart(tmp_path: Path) -> None:
    """And tensors of the same size between them."""
    tensors: dict[str, Any] = {}
    for group in (experts(3), tiny.layers("m.a.q_proj", "m.b.q_proj"), {"m.tiny.weight": ("F32", [2])}):
        tensors |= dict(sorted(group.items(), key=lambda item: item[0].endswith("weight_shape")))
    result = plan(tiny.folder(tmp_path / "c", tiny.config(ignore=()), tensors, tiny.shapes(tensors)))
    assert len(result.layers) == 5


def test_a_file_cut_between_header_and_values_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = experts(3)
    folder = tiny.folder(tmp_path / "c", tiny.config(ignore=()), tensors, tiny.shapes(tensors))

    def cut(*args: Any, original: Callable[..., Any] = checkpoint_module.read_header) -> Any:
        header = original(*args)
        last = [entry for entry in header if entry.name.endswith("weight_shape")][-1]
        os.truncate(header.file, last.end - 1)
        return header

    monkeypatch.setattr(checkpoint_module, "read_header", cut)
    with pytest.raises(UnreadableCheckpointError, match=r"ends inside tensor m\.layers\.0\.mlp\.experts\.2\.up_proj"):
        plan(folder)


def test_a_tensor_twice_is_found_without_a_list_of_all(tmp_path: Path) -> None:
    folder = tiny.sharded(tmp_path / "c", tiny.config(), {"a.safetensors": experts(2), "b.safetensors": experts(1)})
    (folder / INDEX).unlink()
    with pytest.raises(UnreadableCheckpointError, match="stored in two files, a.safetensors and b.safetensors"):
        open_checkpoint(folder)


def test_names_with_and_without_a_module_are_different(tmp_path: Path) -> None:
    tensors = {"w": ("F32", [2]), ".w": ("F32", [2]), "a.w": ("F32", [2])}
    opened = open_checkpoint(tiny.folder(tmp_path / "c", {}, tensors))
    assert set(opened.tensors) == set(tensors) and not opened.tensors.repeated


@pytest.mark.slow
def test_a_model_of_208_000_tensors() -> None:
    """Memory as promised. Time with room for a busy machine: ``python -m benchmarks plan_scale`` measures it."""
    for row in plan_scale.measure(runs=2):
        assert row["tensors"] > 208_000 and row["layers"] > 69_000
        assert row["peak_bytes"] < 300_000_000 and row["cpu_seconds"] < 8
