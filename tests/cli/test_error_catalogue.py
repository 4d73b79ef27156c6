"""Every place that raises an error gives a code of the catalogue, and the command shows it with all the error knows.

The inputs are rows of ``tests/data/errors/cases.toml``.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tiny_plans as tiny

import quantdispatch
from quantdispatch.cli.app import main
from quantdispatch.cli.docs import pages
from quantdispatch.registry import errors as errors_module
from quantdispatch.registry.analysis.findings import CODES
from quantdispatch.registry.error_codes import CATALOGUE
from quantdispatch.registry.errors import QuantDispatchError

ROOT = Path(quantdispatch.__file__).parent
CASES = tomllib.loads((Path(__file__).parents[1] / "data/errors/cases.toml").read_text(encoding="utf-8"))["case"]
PARTS = ("layer", "field", "observed", "required", "remedy")
CLASSES = {name: kind for name, kind in vars(errors_module).items() if isinstance(kind, type)}
#: of these every error is of one kind, or somebody else's
ONE_KIND = {"PlanError", "QuantDispatchError"}
FOLDERS = ("registry", "numerics", "schemes", "backends", "engines", "cli", "testing")
SITES = [
    (f"{path.relative_to(ROOT)}:{node.lineno}", node)
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    if node.func.id in CLASSES and node.func.id not in ONE_KIND
    if issubclass(CLASSES[node.func.id], QuantDispatchError)
]


def merged(base: Any, change: Any) -> Any:
    if isinstance(base, dict) and isinstance(change, dict):
        return {**base, **{key: merged(base.get(key), value) for key, value in change.items()}}
    return change


def written(case: dict[str, Any], path: Path) -> Path:
    """The checkpoint that a row describes."""
    path.mkdir()
    config = merged(tiny.config(), {**case.get("config", {}), "quantization_config": case.get("block", {})})
    dropped = case.get("drop", [])
    text = case.get("text", json.dumps({k: v for k, v in config.items() if k not in dropped}))
    if "*" not in dropped:
        (path / "config.json").write_text(text)
    tensors: dict[str, Any] = {}
    for name, kind in case.get("layers", {"m.q_proj": "int4"}).items():
        tensors |= getattr(tiny, kind)(name)
    tensors = {k: v for k, v in {**tensors, **case.get("tensors", {})}.items() if k not in case.get("without", [])}
    several = "weight_map" in case or case.get("weights") == "twice"
    file = path / ("b.safetensors" if several else "model.safetensors")
    if case.get("weights") == "pickled":
        (path / "pytorch_model.bin").write_bytes(b"PK")
        return path
    if case.get("weights") == "twice":
        tiny.save(path / "a.safetensors", tensors, tiny.shapes(tensors))
    tiny.save(file, tensors, tiny.shapes(tensors))
    if "cut" in case:
        file.write_bytes(file.read_bytes()[: -case["cut"]])
    if "raw" in case:
        file.write_text(case["raw"])
    if "weight_map" in case:
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": case["weight_map"]}))
    return path


@pytest.mark.parametrize("case", CASES, ids=[f"{case['code']}-{i}" for i, case in enumerate(CASES)])
def test_the_command_shows_code_and_all_parts(
    case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[QuantDispatchError] = []
    original = QuantDispatchError.__init__

    def record(self: QuantDispatchError, *args: Any, **facts: Any) -> None:
        original(self, *args, **facts)
        made.append(self)

    monkeypatch.setattr(QuantDispatchError, "__init__", record)
    source = case.get("source", "{path}").format(path=written(case, tmp_path / "c"))
    code = main([case.get("command", "explain"), source, *case.get("arguments", [])])
    out, err = capsys.readouterr()
    shown = " ".join((out + err).split())
    assert f"[{case['code']}]" in shown, shown
    error = next(error for error in made if error.code == case["code"])
    assert code == error.exit_code and type(error).__name__ == CATALOGUE[case["code"]].error
    assert {part for part in PARTS if part in case} <= {part for part in PARTS if getattr(error, part) is not None}
    for part in PARTS:
        value = getattr(error, part)
        if value is not None:
            text = " ".join((value if isinstance(value, str) else repr(value)).split())
            assert text[:190] in shown, (part, shown)
        if part in case:
            assert case[part] in str(value), part


def test_json_has_the_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = next(case for case in CASES if case["code"] == "QD701")
    assert main(["explain", str(written(case, tmp_path / "c")), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [layer["error"]["code"] for layer in document["layers"]] == ["QD701"]


@pytest.mark.parametrize(("place", "call"), SITES, ids=[place for place, _ in SITES])
def test_every_place_gives_a_code_of_its_class(place: str, call: ast.Call) -> None:
    given = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
    assert given, f"{place}: give a code of registry/error_codes.py, or add one there"
    codes = [node.value for node in ast.walk(given[0]) if isinstance(node, ast.Constant)]
    assert isinstance(call.func, ast.Name)
    for code in codes:
        assert CATALOGUE[code].error == call.func.id, (place, code)


def test_the_catalogue_is_whole() -> None:
    assert not set(CATALOGUE) & {row.code for row in CODES.values()}
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    used = {code for code in CATALOGUE if text.count(f'"{code}"') > 1}
    assert used == set(CATALOGUE), "no place gives these"
    for row in CATALOGUE.values():
        assert re.fullmatch(r"QD\d{3}", row.code) and row.meaning and row.cause and row.remedy
    page = pages()["errors.md"]
    assert (ROOT / "docs/errors.md").read_text(encoding="utf-8") == page, "run: make pages"
    assert all(f"\n### {code}\n" in page for code in CATALOGUE)


@pytest.mark.parametrize("name", [name for name in CLASSES if issubclass(CLASSES[name], QuantDispatchError)])
def test_an_error_without_a_code_has_its_classs(name: str) -> None:
    error = CLASSES[name]("wrong")
    assert CATALOGUE[error.code].error == name and error.mark == "" and error.to_json()["code"] == error.code
    assert CLASSES[name]("wrong", code="QD501").mark == " [QD501]"
