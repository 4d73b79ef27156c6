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
