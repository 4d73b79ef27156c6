"""What `explain --json` says, as rows: they hold where it was said, and are few."""

import io
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tiny_plans as tiny
from usual_kernels import INT4

from quantdispatch.registry.plan import plan
from quantdispatch.registry.presets import PRESETS
from quantdispatch.testing import check_row, load_table, registry_with, rows_from_explain, to_toml, using_registry
from quantdispatch.testing.__main__ import main

BUILT_IN = registry_with()
EMPTY = json.dumps(
    {
        "version": 1,
        "layers": [],
        "environment": {"device": "cpu"},
        "device": "cpu",
        "dtype": "float16",
        "tensor_parallel": 1,
    }
)
NAMES = [f"model.layers.{n}.mlp.{name}" for n in range(3) for name in ("up_proj", "down_proj")]


def explained(source: Any, **options: Any) -> dict[str, Any]:
    with using_registry(BUILT_IN):
        return json.loads(json.dumps(plan(source, strict=False, **options).to_json()))


def checked(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a document, each read back from TOML text and found to hold."""
    found = rows_from_explain(document, BUILT_IN)
    raw = tomllib.loads(to_toml(found.rows, defaults=found.defaults))
    rows = load_table([{**raw["defaults"], **row} for row in raw["row"]], registry=BUILT_IN)
    for row in rows:
        check_row(row)
    return raw["row"]


@pytest.mark.parametrize("device", ["cpu", "cuda:sm90", "rocm:gfx942"])
@pytest.mark.parametrize("format_", ["pack-quantized", "float-quantized", "nvfp4-pack-quantized"])
def test_what_was_explained_holds(device: str, format_: str) -> None:
    groups = {name: [f"re:.*{name}$"] for name in PRESETS if name != "UNQUANTIZED"}
    block = {"quant_method": "compressed-tensors", "format": format_, "config_groups": groups}
    modules = {f"model.layers.0.{name}": "Linear" for name in groups}
    rows = checked(explained(block, modules=modules, device=device))
    assert {row.get("error") for row in rows} >= {None, "NoSchemeFound"}
    assert 10 < len(rows) <= len(groups)  # some presets are the same by two names


def test_layers_alike_are_one_row_with_a_shape(tmp_path: Path) -> None:
    tensors = {**tiny.layers(*NAMES), **tiny.dense("lm_head")}
    (row,) = checked(explained(tiny.checkpoint(tmp_path, tiny.config(), tensors)))
    assert row["shape"] == [64, 64]
    assert row["note"] == f"{NAMES[1]} and 5 more"
    assert row["kernel"] == INT4


def test_what_follows_from_tensors_is_left_out(tmp_path: Path) -> None:
    tensors = {**tiny.layers(*NAMES[1:]), **tiny.dense(NAMES[0])}
    found = rows_from_explain(explained(tiny.checkpoint(tmp_path, tiny.config(), tensors)), BUILT_IN)
    assert len(found.rows) == 1
    assert any("CheckpointError follows from more than a layer's facts" in text for text in found.left_out)


def test_the_environment_is_stated_as_far_as_kernels_ask_for_it() -> None:
    facts = {"isa.avx512_vnni": True, "triton": None}
    stated = rows_from_explain(explained(tiny.config(), environment=facts), BUILT_IN).defaults["environment"]
    asked = {name for kernel in BUILT_IN.kernels for box in kernel.predicate.boxes for name, _ in box.fields}
    assert stated["isa.avx512_vnni"] is True
    assert set(stated) <= asked


@pytest.mark.parametrize("document", [{}, {"version": 2, "layers": []}, {"version": 1, "layers": {}}])
def test_another_document_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="explain --json"):
        rows_from_explain(document, BUILT_IN)


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("piped", [False, True])
def test_the_command_writes_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, as_json: bool, piped: bool
) -> None:
    text = json.dumps(explained(tiny.config()))
    path = tmp_path / "explain.json"
    path.write_text(text)
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert main(["rows", *([] if piped else [str(path)]), *(["--json"] if as_json else [])]) == 0
    written = tmp_path / ("t.json" if as_json else "t.toml")
    output = capsys.readouterr()
    written.write_text(output.out)
    assert output.err == "left out: 1 layers: left dense by the config\n"
    for row in load_table(written, registry=BUILT_IN):
        check_row(row)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "Expecting"),
        ("[]", "not a JSON object"),
        ("{}", "explain --json"),
        ('{"version": 1, "layers": []}', "explain --json"),
        (EMPTY, "nothing to write"),
    ],
)
def test_the_command_says_in_one_line_what_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert main(["rows"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and words in error and error.count("\n") == 1
    assert main(["rows", "/nowhere.json"]) == 2
