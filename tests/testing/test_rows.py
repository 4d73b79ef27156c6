"""What can be written in a table, and that nothing else can."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantdispatch.testing import Row, TableError, load_table, to_toml

W4 = {"num_bits": 4, "group_size": 128}
ROW = {"id": "a row", "weights": W4, "format": "pack-quantized", "rule": "wNa16_int"}


def written(tmp_path: Path, text: str, name: str = "t.toml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weigths": W4}, ["weigths", "did you mean weights"]),
        ({"schema": "wNa16_int"}, ["schema", "did you mean scheme"]),
        ({"weights": {"num_bit": 4}}, ["weights.num_bit", "did you mean weights.num_bits"]),
        ({"weights": "W4A16"}, ["weights", "table of quant args"]),
        ({"kind": "Linear"}, ["kind", "lm_head"]),
        ({"dtype": "bf16"}, ["dtype", "bfloat16"]),
        ({"preset": "W4A17"}, ["preset"]),
        ({"shape": [128]}, ["shape", "[N, K]"]),
        ({"shape": [128, 0]}, ["shape", "[N, K]"]),
        ({"scheme": 4}, ["scheme", "not a text"]),
        ({"rule": None}, ["rule", "not a text"]),
        ({"message": "words"}, ["message", "about an error"]),
        ({"near": "wNa16_int"}, ["near", "about an error"]),
        ({"error": "NoSchemeFound", "message": []}, ["message", "hold for anything"]),
        ({"error": "NoSchemeFound", "message": ""}, ["message", "not empty"]),
        ({"error": "NoSchemeFound", "near": [4]}, ["near"]),
        ({"equivalents": ["vllm"]}, ["equivalents", "engine"]),
        ({"config": {}}, ["config", "two ways", "weights"]),
        ({"checkpoint": "x", "config": "y"}, ["two ways"]),
        ({"modules": {"a": "Linear"}}, ["modules", "row of this form"]),
        ({"group": "group_0"}, ["group", "row of this form"]),
        ({"problems": []}, ["problems"]),
        ({"environment": "triton"}, ["environment"]),
        ({"id": " "}, ["without an id"]),
        ({"id": 3}, ["without an id"]),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_a_row_that_cannot_be_meant_is_refused(change: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(TableError) as caught:
        Row.read({**ROW, **change})
    named = [] if "id" in change else ["a row"]
    assert all(word in str(caught.value) for word in [*words, *named]), caught.value


@pytest.mark.parametrize("missing", ["id", "rule"])
def test_a_row_needs_an_id_and_an_expectation(missing: str) -> None:
    with pytest.raises(TableError, match=r"without an id|expects nothing: give one of rule, scheme, kernel"):
        Row.read({key: value for key, value in ROW.items() if key != missing})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "without rows"),
        ("[defaults]\nkind = 'moe'\n", "without rows"),
        ("row = []", "without rows"),
        ("rows = []", "rows is no key of a table"),
        ("plugins = 'x'\n[[row]]\nid='a'\nrule='b'", "plugins is a list"),
        ("[defaults]\nid='a'\n[[row]]\nrule='b'", "defaults"),
        (
            "[[row]]\nid = 'a'\nrule = 'b'\n\n[[row]]\nid = 'a'\nrule = 'b'\n",
            r't.toml:5: row "a" has the id of another',
        ),
        ("\n[[row]]\nid = 'a'\nrul = 'b'", 't.toml:2: row "a": rul is no key'),
        ("row = [1]", "a row is a table of keys"),
        ("[[row]", "not toml"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(TableError, match=words):
        load_table(written(tmp_path, text))


@pytest.mark.parametrize(("name", "text"), [("t.json", "[]"), ("t.json", "{"), ("t.toml", "\x00"), ("no/t.toml", None)])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, name: str, text: str | None) -> None:
    path = tmp_path / name if text is None else written(tmp_path, text, name)
    with pytest.raises(TableError, match=r"t\.(json|toml)"):
        load_table(path)


def test_defaults_are_keys_that_a_row_does_not_have(tmp_path: Path) -> None:
    text = to_toml([{**ROW, "kind": "moe"}, {**ROW, "id": "b"}], defaults={"kind": "lm_head", "device": "cuda:sm90"})
    first, second = load_table(written(tmp_path, text))
    assert (first.asks["kind"], second.asks["kind"]) == ("moe", "lm_head")
    assert first.asks["device"] == second.asks["device"] == "cuda:sm90"


def test_toml_json_and_mappings_say_the_same(tmp_path: Path) -> None:
    rows = [ROW, {**ROW, "id": "b", "error": "NoSchemeFound", "near": ["x", "y"], "insensitive": "weights.*"}]
    spelled = [
        load_table(written(tmp_path, to_toml(rows))),
        load_table(written(tmp_path, json.dumps({"row": rows}), "t.json")),
        load_table(rows),
    ]
    assert [[(r.id, r.asks, r.expects, r.insensitive) for r in table] for table in spelled[1:]] == [
        [(r.id, r.asks, r.expects, r.insensitive) for r in spelled[0]]
    ] * 2
    assert [row.line for row in spelled[0]] == [1, 7]
    assert spelled[0]["b"] is spelled[0][1]


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**62), 2**62) | TEXTS | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=4))
def test_what_is_written_as_toml_reads_back(row: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml([row], defaults={"d": row}, plugins=["p"])) == {
        "plugins": ["p"],
        "defaults": {"d": row},
        "row": [row],
    }


def test_toml_has_no_null() -> None:
    with pytest.raises(TypeError, match="NoneType"):
        to_toml([{"a": None}])
