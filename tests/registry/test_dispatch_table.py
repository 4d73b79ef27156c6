"""The built-in rules, row by row: tests/data/dispatch.toml says what each layer becomes, and every row can fail."""

import random
from pathlib import Path

import pytest

from quantdispatch.registry.facts import KINDS, LayerFacts
from quantdispatch.registry.resolver import describe
from quantdispatch.registry.rules import builtin_rules
from quantdispatch.registry.table import RuleTable
from quantdispatch.testing import Row, RowMismatch, check_mutations, check_row, dispatch_table, load_table, mutations
from quantdispatch.testing.observing import observe

TABLE = load_table(Path(__file__).parents[1] / "data" / "dispatch.toml")
RULES = list(builtin_rules())


@dispatch_table(TABLE)
def test_row(row: Row) -> None:
    check_row(row)


@dispatch_table(TABLE)
def test_row_notices_every_fact_that_matters_and_only_those(row: Row) -> None:
    check_mutations(row, strict=True)


@dispatch_table(TABLE)
def test_row_fails_when_any_of_its_expectations_is_flipped(row: Row) -> None:
    flipped = [m for m in mutations(row) if m.of == "expectation"]
    assert {m.what for m in flipped} == {*row.expects, "error"}
    for mutation in flipped:
        with pytest.raises(RowMismatch):
            check_row(mutation.row)


def test_every_rule_and_every_kind_has_a_row() -> None:
    assert {row.expects.get("rule") for row in TABLE} - {None} == {rule.name for rule in RULES}
    assert {row.asks.get("kind", "linear") for row in TABLE} == set(KINDS)


def facts_of(row: Row) -> LayerFacts:
    (seen,) = observe(row, TABLE.registry)
    assert seen.layer is not None
    return LayerFacts(seen.layer.kind, seen.layer.format, seen.layer.weights, seen.layer.inputs, seen.layer.outputs)


@pytest.mark.parametrize("seed", range(4))
def test_order_of_registration_changes_nothing(seed: int) -> None:
    table = RuleTable.build(random.Random(seed).sample(RULES, len(RULES)))
    for row in TABLE:
        facts = facts_of(row)
        decision, usual = table.resolve(facts), TABLE.registry.resolve(facts)
        assert decision.rule == usual.rule, describe(facts)
        assert [c.rule.name for c in decision.trace] == [c.rule.name for c in usual.trace]
