"""The table refuses what would make a decision depend on luck, and says with which layer."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantdispatch import Absent, Args, PluginError, Rule, When
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.facts import LayerFacts
from quantdispatch.registry.legal import witness
from quantdispatch.registry.table import RuleTable, find_cycle, overlaps

SCHEME = "quantdispatch.schemes.dense:Dense"
W4 = QuantArgs(num_bits=4, group_size=128)


def rule(name: str, overrides: tuple[str, ...] = (), **weights: object) -> Rule:
    return Rule(name, When(kind="linear", weights=Args(**weights), inputs=Absent), SCHEME, overrides=overrides)


def layer(args: QuantArgs) -> LayerFacts:
    return LayerFacts("linear", "pack-quantized", args)


def test_undeclared_overlap_is_refused_with_a_witness_that_both_match() -> None:
    wide, narrow = rule("wide", type="int"), rule("narrow", num_bits=4)
    with pytest.raises(PluginError, match=r"narrow .* and wide .* both match linear.*int4") as caught:
        RuleTable.build([wide, narrow])
    assert "overrides=" in str(caught.value)
    (overlap,) = overlaps([wide, narrow])
    assert all(r.predicate.test(overlap.witness.flat).status == "yes" for r in (wide, narrow))


def test_override_decides_the_intersection_only() -> None:
    table = RuleTable.build([rule("wide", type="int"), rule("narrow", overrides=("wide",), num_bits=4)])
    assert table.resolve(layer(W4)).rule.name == "narrow"  # type: ignore[union-attr]
    assert table.resolve(layer(QuantArgs(num_bits=8, group_size=128))).rule.name == "wide"  # type: ignore[union-attr]
    trace = {c.rule.name: c for c in table.resolve(layer(W4)).trace}
    assert str(trace["wide"]) == "wide: overridden by narrow"


def test_an_overlap_without_a_legal_layer_is_none() -> None:
    # channel scales cannot have a group size: the boxes meet only in args that nobody can write
    first, second = rule("a", strategy="channel"), rule("b", group_size=128)
    assert overlaps([first, second]) == []


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([rule("a", num_bits=4), rule("a", num_bits=8)], "registered twice"),
        ([rule("a", overrides=("nobody",), num_bits=4)], "overrides 'nobody'"),
        ([rule("a", ("b",), num_bits=4), rule("b", ("a",), num_bits=4)], "cycle"),
        ([rule("a", ("a",), num_bits=4)], "cycle"),
    ],
)
def test_bad_tables(rules: list[Rule], words: str) -> None:
    with pytest.raises(PluginError, match=words):
        RuleTable.build(rules)


@given(st.dictionaries(st.integers(0, 5), st.lists(st.integers(0, 5), max_size=3), max_size=6))
def test_cycles_are_found_exactly(raw: dict[int, list[int]]) -> None:
    graph = {str(k): [str(v) for v in vs] for k, vs in raw.items()}

    def reaches(start: str, goal: str) -> bool:
        seen, todo = set(), list(graph.get(start, ()))
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo += graph.get(name, ())
        return goal in seen

    cycle = find_cycle(graph)
    assert (cycle is not None) == any(reaches(n, n) for n in graph)
    if cycle is not None:
        assert cycle[0] == cycle[-1]
        assert all(b in graph[a] for a, b in itertools.pairwise(cycle))


BITS, STRATEGIES, SYMMETRIC = (2, 4, 8), ("channel", "group", "tensor"), (True, False)


def random_args(draw: st.DrawFn) -> dict[str, object]:
    return {
        "num_bits": draw(st.sets(st.sampled_from(BITS), min_size=1)),
        "strategy": draw(st.sets(st.sampled_from(STRATEGIES), min_size=1)),
        "symmetric": draw(st.sets(st.sampled_from(SYMMETRIC), min_size=1)),
        "type": "int",
    }


@st.composite
def rule_sets(draw: st.DrawFn) -> list[Rule]:
    return [rule(f"r{i}", **random_args(draw)) for i in range(draw(st.integers(1, 4)))]


def every_layer() -> list[LayerFacts]:
    sizes = {"channel": None, "group": 128, "tensor": None}
    return [
        layer(QuantArgs(num_bits=b, strategy=s, symmetric=y, group_size=sizes[s]))
        for b, s, y in itertools.product(BITS, STRATEGIES, SYMMETRIC)
    ]


@settings(max_examples=60, deadline=None)
@given(rule_sets())
def test_overlaps_agree_with_enumeration_and_the_dispatcher_with_the_predicates(rules: list[Rule]) -> None:
    layers = every_layer()
    by_hand = {
        (a.name, b.name)
        for a, b in itertools.combinations(rules, 2)
        if any(a.predicate.test(x.flat).status == b.predicate.test(x.flat).status == "yes" for x in layers)
    }
    assert {(o.first.name, o.second.name) for o in overlaps(rules)} == by_hand
    if by_hand:
        return
    table = RuleTable.build(rules)
    for x in layers:
        expected = [r.name for r in rules if r.predicate.test(x.flat).status == "yes"]
        decision = table.resolve(x)
        assert ([decision.rule.name] if decision.rule else []) == expected
        assert len(decision.trace) == len(rules)


def test_nearest_is_the_rule_with_the_smallest_change() -> None:
    table = RuleTable.build([rule("four", num_bits=4, type="int"), rule("fp8", num_bits=8, type="float")])
    near = table.nearest(layer(QuantArgs(num_bits=8, group_size=128)), 2)
    assert [str(c) for c in near] == [
        "four: weights.num_bits is 8, requires 4",
        "fp8: weights.type is int, requires float",
    ]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": ""}, "name"),
        ({"scheme": "no target"}, "module:attr"),
        ({"scheme": object}, "module:attr"),
        ({"overrides": "wide"}, "tuple"),
        ({"when": lambda facts: True}, "When"),
        ({"when": ()}, "When"),
    ],
)
def test_a_rule_checks_itself(fields: dict[str, object], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        Rule(**{"name": "x", "when": When(), "scheme": SCHEME, **fields})  # type: ignore[arg-type]


def test_a_rule_knows_where_it_was_written() -> None:
    assert rule("x").source.split(":")[0].endswith("test_table.py")


def test_witness_of_everything_is_legal() -> None:
    found = witness(When().boxes[0])
    assert found is not None and found.kind == "linear"
