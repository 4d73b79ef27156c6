"""The built-in rules, row by row, and that every row can fail."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.facts import LayerFacts
from quantdispatch.registry.registry import build

ROWS = tomllib.loads((Path(__file__).parents[1] / "data" / "dispatch.toml").read_text(encoding="utf-8"))["row"]
REGISTRY = build()


def facts_of(row: dict[str, Any]) -> LayerFacts:
    sides = {side: QuantArgs(**row[side]) if side in row else None for side in ("weights", "inputs", "outputs")}
    return LayerFacts(row.get("kind", "linear"), row.get("format"), **sides)


def outcome(row: dict[str, Any]) -> dict[str, str]:
    facts = facts_of(row)
    decision = REGISTRY.resolve(facts)
    if decision.rule is None:
        return {"rule": "", "near": REGISTRY.nearest(facts)[0].rule.name}
    return {"rule": decision.rule.name, "scheme": REGISTRY.scheme_class(decision.rule).name}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_row(row: dict[str, Any]) -> None:
    got = outcome(row)
    for field in ("rule", "scheme", "near"):
        if field in row:
            assert got.get(field) == row[field], (field, [str(c) for c in REGISTRY.resolve(facts_of(row)).trace])


def test_ids_are_unique() -> None:
    assert len({row["id"] for row in ROWS}) == len(ROWS)


def test_every_rule_has_a_row_that_only_it_satisfies() -> None:
    reached = {row["rule"] for row in ROWS} - {""}
    assert reached == {rule.name for rule in REGISTRY.rules.rules}


def test_order_of_registration_changes_nothing() -> None:
    from quantdispatch.registry.rules import builtin_rules
    from quantdispatch.registry.table import RuleTable

    rules = list(builtin_rules())
    for turned in (rules[::-1], rules[3:] + rules[:3]):
        table = RuleTable.build(turned)
        for row in ROWS:
            decision = table.resolve(facts_of(row))
            assert (decision.rule.name if decision.rule else "") == row["rule"]


@pytest.mark.parametrize(
    ("row", "equivalents", "differs"),
    [
        (
            "w4a16 asymmetric group (AWQ style)",
            {"sglang": "CompressedTensorsWNA16", "vllm": "CompressedTensorsWNA16"},
            {},
        ),
        ("w3a16 group 40", {"vllm": "CompressedTensorsWNA16"}, {}),
        ("w4a16 group activation ordering of old checkpoints", {"sglang": "CompressedTensorsWNA16"}, {}),
        (
            "w8a8 channel, dynamic token",
            {"sglang": "CompressedTensorsW8A8Int8", "vllm": "CompressedTensorsW8A8Int8"},
            {},
        ),
        ("w4a8 group, packed", {}, {"vllm": "leaves inputs unquantized in every kernel but Humming's"}),
        ("w8a16 stored as int8", {}, {}),
        ("fp8 weight-only", {"sglang": "CompressedTensorsW8A16Fp8", "vllm": "CompressedTensorsW8A16Fp8"}, {}),
    ],
)
def test_what_the_engines_do_with_it(row: str, equivalents: dict[str, str], differs: dict[str, str]) -> None:
    facts = facts_of(next(r for r in ROWS if r["id"] == row))
    rule = REGISTRY.resolve(facts).rule
    assert rule is not None
    assert {engine: ", ".join(names) for engine, names in rule.equivalents_for(facts).items()} == equivalents
    assert rule.differs_for(facts) == differs
    assert not set(equivalents) & set(differs)
