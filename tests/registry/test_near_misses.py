"""``NoSchemeFound`` names the rule that a person would name, and the one change that would make the layer resolve.

The table is ``tests/data/near_misses.toml``: the first text of ``message`` is the field that is wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quantdispatch.registry.domains import domain
from quantdispatch.registry.errors import NoSchemeFound
from quantdispatch.registry.facts import KINDS, SIDES, LayerFacts, args_facts
from quantdispatch.registry.nearness import cost
from quantdispatch.registry.predicates import Mismatch
from quantdispatch.registry.registry import build
from quantdispatch.registry.values import ABSENT
from quantdispatch.testing import Row, check_row, dispatch_table, load_table
from quantdispatch.testing.observing import observe

TABLE = Path(__file__).parents[1] / "data" / "near_misses.toml"
ROWS = list(load_table(TABLE))
REGISTRY = build()


def miss(row: Row) -> NoSchemeFound:
    (seen,) = observe(row, REGISTRY)
    assert isinstance(seen.error, NoSchemeFound)
    return seen.error


@dispatch_table(TABLE)
def test_the_nearest_rule(row: Row) -> None:
    check_row(row)


@dispatch_table(TABLE)
def test_the_field_with_what_it_is_and_what_it_should_be(row: Row) -> None:
    error = miss(row)
    field = row.expects["message"][0]
    first = error.nearest[0]
    assert field in {m.field for m in first.mismatches}
    assert len(error.nearest) == 3 and all(candidate.mismatches for candidate in error.nearest)
    assert f"{field} is " in str(first) and "requires" in str(first)
    text = str(error)
    assert f"it would resolve as {first.rule.name} if " in text
    assert all(f"{m.field} were {m.required} instead of {m.shown}" in text for m in first.mismatches)
    assert error.to_json()["nearest"] == [str(candidate) for candidate in error.nearest]


@dispatch_table(TABLE)
def test_the_change_makes_it_resolve(row: Row) -> None:
    (seen,) = observe(row, REGISTRY)
    first = miss(row).nearest[0]
    flat = dict(facts_of(seen))
    assert first.rule.predicate.test(flat).status == "no"
    for mismatch in first.mismatches:
        change(flat, mismatch)
    assert any(len(box.test(flat).mismatches) == 0 for box in first.rule.predicate.boxes)


def facts_of(seen: Any) -> dict[str, Any]:
    layer = seen.layer
    return dict(LayerFacts(layer.kind, layer.format, layer.weights, layer.inputs, layer.outputs).flat)


def change(flat: dict[str, Any], mismatch: Mismatch) -> None:
    """Make the field what the rule wants; a side that goes takes its fields along."""
    if mismatch.field in SIDES and ABSENT in mismatch.required:
        flat.update(args_facts(mismatch.field, None))
        return
    wanted = mismatch.required
    flat[mismatch.field] = next(iter(wanted.allowed)) if wanted.allowed else wanted.low


def test_the_table_is_varied() -> None:
    """Every family of rules, every field that rules constrain, and every kind of layer that they tell apart."""
    assert len(ROWS) >= 50 and len({row.id for row in ROWS}) == len(ROWS)
    named = {row.expects["near"][0] for row in ROWS}
    assert named == {rule.name for rule in REGISTRY.rules.rules}
    fields = {row.expects["message"][0] for row in ROWS}
    tested = {name for rule in REGISTRY.rules.rules for box in rule.predicate.boxes for name, _ in box.fields}
    # activations have no ordering, and none of the rules for dense layers is missed by its weights alone
    unnamed = {"weights", "weights.type", "weights.actorder", "inputs.actorder", "outputs.actorder"}
    unnamed |= {"outputs.strategy", "outputs.symmetric", "outputs.scale_dtype"}
    assert tested - fields - unnamed == set()
    assert {row.asks.get("kind", "linear") for row in ROWS} >= set(KINDS) - {"lm_head"}


COSTS: list[tuple[str, list[tuple[str, Any, Any]], list[tuple[str, Any, Any]]]] = [
    ("fewer fields of one sort", [("inputs.symmetric", False, True)],
     [("inputs.symmetric", False, True), ("inputs.scale_dtype", "uint8", None)]),
    ("inputs rather than weights", [("inputs.num_bits", 6, 8)], [("weights.num_bits", 6, 8)]),
    ("bits rather than type", [("weights.num_bits", 8, 4)], [("weights.type", "float", "int")]),
    ("wider rather than narrower", [("inputs.num_bits", 6, 8)], [("inputs.num_bits", 6, 4)]),
    ("the name of a format rather than what is stored", [("format", "x", "y")], [("weights.num_bits", 4, 8)]),
    ("groups in another way rather than no groups", [("weights.strategy", "group", "tensor_group")],
     [("weights.strategy", "group", "channel")]),
    ("anything rather than another kind", [("inputs", "present", ABSENT)], [("kind", "embedding", "linear")]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "near", "far"), COSTS, ids=[row[0] for row in COSTS])
def test_what_it_takes(name: str, near: Any, far: Any) -> None:
    flat = {"weights": "present", "inputs": "present", "outputs": ABSENT}
    costs = [cost([Mismatch(f, seen, domain(wanted)) for f, seen, wanted in side], flat) for side in (near, far)]
    assert 0 < costs[0] < costs[1]


def test_nothing_to_change_costs_nothing() -> None:
    assert cost([], {"weights": ABSENT, "inputs": ABSENT, "outputs": ABSENT}) == 0


def test_the_nearest_are_in_the_order_of_what_they_take() -> None:
    for row in ROWS:
        (seen,) = observe(row, REGISTRY)
        flat = facts_of(seen)
        order = [cost(c.mismatches, flat) for c in miss(row).nearest]
        assert order == sorted(order)


@dispatch_table(TABLE)
def test_what_keeps_a_layer_out_is_what_some_box_says(row: Row) -> None:
    (seen,) = observe(row, REGISTRY)
    flat = facts_of(seen)
    for candidate in miss(row).nearest:
        said = [box.test(flat).mismatches for box in candidate.rule.predicate.boxes]
        least = min(cost(mismatches, flat) for mismatches in said)
        assert candidate.mismatches in said and cost(candidate.mismatches, flat) == least
