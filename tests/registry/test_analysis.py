"""Each kind of finding: what it says, where it points, and that its witness shows the fault when it is planned."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quantdispatch import Absent, Args, PluginError, Rule, When
from quantdispatch.registry import plan as plan_module
from quantdispatch.registry.analysis import CODES, Finding, check_rules
from quantdispatch.registry.analysis.conflicts import conflicts
from quantdispatch.registry.analysis.names import find_cycles
from quantdispatch.registry.domains import at_least, between, not_in
from quantdispatch.registry.errors import NoSchemeFound
from quantdispatch.registry.plan import plan
from quantdispatch.registry.registry import Registry
from quantdispatch.registry.resolution import Resolution
from quantdispatch.registry.rules import builtin_rules
from quantdispatch.registry.rules.supported import SUPPORTED, Supported
from quantdispatch.registry.settlement import settle
from quantdispatch.registry.table import RuleTable

DENSE, OTHER = "quantdispatch.schemes.dense:Dense", "quantdispatch.schemes.wna16_int:WNA16Int"


def rule(name: str, *overrides: str, scheme: str = DENSE, dist: str = "", **weights: Any) -> Rule:
    when = When(format="pack-quantized", weights=Args(**weights), inputs=Absent, outputs=Absent)
    return Rule(name, when, scheme, overrides=overrides, distribution=dist)


def check(*rules: Rule, **options: Any) -> list[Finding]:
    return list(check_rules(rules, **{"against": (), "schemes": False, **options}))


def planned(found: Finding, rules: list[Rule], monkeypatch: pytest.MonkeyPatch) -> Resolution:
    """What the witness becomes under a table of ``rules``."""
    monkeypatch.setattr(plan_module, "get_registry", lambda: Registry(RuleTable(rules), ()))
    (layer,) = plan(found.configs()[0], strict=False).layers.values()
    return layer


def test_an_undeclared_overlap_names_both_and_its_witness_cannot_be_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = [rule("wide", type="int", dist="one"), rule("narrow", num_bits=4, type="int", dist="two")]
    (found,) = check(*rules)
    assert (found.code, found.name, found.severity) == ("QD201", "overlap", "error")
    assert found.rules == ("narrow", "wide") and found.distributions == ("two", "one")
    assert all(
        source.startswith("tests/registry/test_analysis.py:") or "test_analysis.py:" in source
        for source in found.sources
    )
    assert "overrides=('wide',)" in found.remedy
    error = planned(found, rules, monkeypatch).error
    assert isinstance(error, PluginError) and "narrow, wide all match" in str(error)


def test_a_third_rule_that_beats_both_settles_an_overlap() -> None:
    a, b = rule("a", type="int", num_bits={4, 8}), rule("b", type="int", num_bits={8, 2})
    assert [f.rules for f in check(a, b)] == [("a", "b")]
    judge = rule("judge", "a", "b", type="int", num_bits=8, scheme=OTHER)
    assert check(a, b, judge) == []


def test_an_empty_rule_and_an_empty_alternative() -> None:
    impossible = rule("impossible", strategy="channel", group_size=128)
    (found,) = check(impossible)
    assert (found.code, found.rules, found.witnesses) == ("QD101", ("impossible",), ())
    half = Rule("half", [impossible.predicate, rule("x", num_bits=4).predicate], DENSE)
    (found,) = check(half)
    assert (found.code, found.severity) == ("QD102", "warning") and "alternative 1 of 2" in found.message
    # a misspelt format is never read as such
    (found,) = check(Rule("typo", When(format="pack_quantized", weights=Args()), DENSE))
    assert found.code == "QD101"


def test_a_rule_covered_by_two_others_together_is_shadowed(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = [
        rule("both", type="int", num_bits={4, 8}),
        rule("four", "both", type="int", num_bits=4, scheme=OTHER),
        rule("eight", "both", type="int", num_bits=8, scheme=OTHER),
        rule("bystander", "both", type="int", num_bits={2, 4}, symmetric=False, scheme=OTHER, dist="x"),
    ]
    rules[1] = rule("four", "both", "bystander", type="int", num_bits=4, scheme=OTHER)
    (found,) = check(*rules)
    assert (found.code, found.rules, found.severity) == ("QD103", ("both", "eight", "four"), "error")
    assert {planned(found, rules, monkeypatch).rule.name} <= {"four", "eight"}  # type: ignore[union-attr]


def test_a_plugin_may_replace_a_rule_of_another_distribution() -> None:
    old = rule("old", type="int", num_bits=4, dist="base")
    (found,) = check(old, rule("new", "old", type="int", dist="plugin", scheme=OTHER))
    assert (found.name, found.severity) == ("shadowed-rule", "warning")


def test_a_redundant_rule_is_one_whose_layers_fall_to_the_same_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    wide, narrow = rule("wide", type="int"), rule("narrow", "wide", type="int", num_bits=4)
    (found,) = check(wide, narrow)
    assert (found.code, found.rules) == ("QD104", ("narrow", "wide"))
    assert planned(found, [wide, narrow], monkeypatch).rule is narrow
    assert planned(found, [wide], monkeypatch).rule is wide
    assert check(wide, rule("narrow", "wide", type="int", num_bits=4, scheme=OTHER)) == []
    # what is said of engines is an outcome, too
    told = Rule("narrow", narrow.predicate, DENSE, overrides=("wide",), equivalents={"vllm": ("X",)})
    assert check(wide, told) == []


def test_alternatives_that_others_cover_together_are_redundant() -> None:
    parts = [{"num_bits": between(1, 4)}, {"num_bits": between(3, 6)}, {"num_bits": between(5, 8)}]
    one = Rule("one", [When(kind="linear", weights=Args(type="int", **p)) for p in parts], DENSE)
    (found,) = check(one)
    assert found.code == "QD105" and found.message.startswith("alternative 2 of 3")
    assert found.message.endswith("adds nothing to 1 and 3")
    twice = Rule("twice", [rule("x", num_bits=4).predicate] * 3, DENSE)
    assert [f.message.split()[1] for f in check(twice)] == ["2", "3"]


def test_overrides() -> None:
    a, b = rule("a", "b", type="int", num_bits=4), rule("b", type="int", num_bits=8)
    (found,) = check(a, b)
    assert (found.code, found.rules) == ("QD202", ("a", "b"))
    (found,) = check(rule("wNa16", "wNa17", type="int"), rule("wNa16_int", type="float"))
    assert (found.code, found.remedy) == ("QD203", "did you mean 'wNa16'?")
    circle = [rule(n, o, type="int") for n, o in (("a", "b"), ("b", "c"), ("c", "a"))]
    assert [(f.code, f.rules) for f in check(*circle)] == [("QD204", ("a", "b", "c"))]
    assert [f.code for f in check(rule("a", "a", type="int"))] == ["QD204"]


def test_a_name_that_two_rules_have() -> None:
    first, second = rule("same", type="int", dist="one"), rule("same", type="float", dist="two")
    (found,) = check(first, second)
    assert (found.code, found.distributions) == ("QD205", ("one", "two"))
    assert check(first, first) == []
    # against what is installed, the newcomer is to blame, and out
    (found,) = check_rules([rule("dense", type="int")], schemes=False)
    assert found.code == "QD205" and found.rules == ("dense", "dense")


@pytest.mark.parametrize(
    ("scheme", "words"),
    [
        ("no.such.module:Scheme", "No module named"),
        ("quantdispatch.schemes.dense:Nothing", "cannot import"),
        ("quantdispatch.registry.facts:LayerFacts", "not a subclass of Scheme"),
        ("quantdispatch.registry.facts:KINDS", "not a subclass of Scheme"),
    ],
)
def test_schemes_that_are_none(scheme: str, words: str) -> None:
    (found,) = check(rule("a", scheme=scheme, type="int"), schemes=True)
    assert found.code == "QD301" and words in found.message


def test_a_gap_is_counted_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = [rule("some", type="int", num_bits={4, 8}, strategy="group", group_size=not_in({64}))]
    region = Supported("ints", rule("x", type="int", num_bits=between(4, 8), strategy={"group", "channel"}).predicate)
    (found,) = check(*rules, supported=[region])
    assert (found.code, len(found.witnesses), found.rules) == ("QD401", 3, ())
    assert found.count and f"{found.count} of " in found.message and "'ints'" in found.message
    ways = {(w.weights.num_bits, w.weights.strategy) for w in found.witnesses if w.weights is not None}
    assert len(ways) == 3
    assert isinstance(planned(found, rules, monkeypatch).error, NoSchemeFound)
    filled = check(*rules, rule("rest", "some", type="int"), supported=[region])
    assert [f.name for f in filled] == ["shadowed-rule"]


def test_the_built_in_rules_are_clean_and_cover_what_is_declared() -> None:
    assert check_rules(builtin_rules(), against=(), supported=SUPPORTED) == ()
    assert check_rules(builtin_rules()) == ()


@pytest.mark.parametrize("gone", [r.name for r in builtin_rules()])
def test_the_declared_region_needs_every_built_in_rule(gone: str) -> None:
    """The region was declared on its own, and there is no rule that it could do without."""
    left = [r for r in builtin_rules() if r.name != gone]
    assert {f.name for f in check_rules(left, against=(), supported=SUPPORTED, schemes=False)} == {"gap"}


def test_the_order_of_rules_changes_no_finding() -> None:
    rng = random.Random(5)
    rules = [
        rule(
            f"r{i}",
            *(f"r{j}" for j in range(i) if rng.random() < 0.4),
            type="int",
            num_bits=set(rng.sample(range(1, 9), 3)),
        )
        for i in range(7)
    ] + [rule("odd", "nobody", strategy="channel", group_size=4), rule("r1", type="float")]
    first = check(*rules, supported=SUPPORTED[1:3])
    assert len({f.name for f in first}) > 4
    for _ in range(5):
        rng.shuffle(rules)
        assert check(*rules, supported=SUPPORTED[1:3]) == first


def pathological(number: int) -> list[Rule]:
    """Rules of which any two, three, ... meet in layers of their own."""
    rng = random.Random(number)
    rules = []
    for i in range(number):
        sizes = set(rng.sample(range(1, 400), 200))
        bits = set(rng.sample(range(1, 200), 100))
        rules.append(rule(f"r{i:03}", *(f"r{j:03}" for j in range(i)), type="int", group_size=sizes, num_bits=bits))
    return rules


def test_a_table_that_takes_too_long_ends_undecided() -> None:
    found = check(*pathological(40), fuel=20_000)
    (undecided,) = [f for f in found if f.name == "not-decided"]
    assert (undecided.code, undecided.severity) == ("QD901", "warning")
    assert undecided.count == len(undecided.rules) > 0
    assert "not decided within 20000 steps" in undecided.message
    # what was not decided is not guessed
    assert not {f.rules[0] for f in found if f is not undecided} & set(undecided.rules)


def test_one_hard_rule_leaves_the_others_decided() -> None:
    easy = [rule("one", type="float", num_bits=8), rule("two", type="float", num_bits=8)]
    found = check(*pathological(40), *easy, fuel=100_000)
    assert any(f.rules == ("one", "two") and f.name == "overlap" for f in found)


DOCS = Path(__file__).parents[2] / "docs" / "rule-checks.md"


def test_findings_are_json_and_every_code_is_documented() -> None:
    found = check(rule("a", type="int"), rule("b", num_bits=4), rule("c", strategy="channel", group_size=4))
    assert json.loads(json.dumps([f.to_json() for f in found]))[0]["witnesses"] == []
    assert len({c.code for c in CODES.values()}) == len(CODES)
    heads = [line.removeprefix("### ") for line in DOCS.read_text().splitlines() if line.startswith("### ")]
    assert heads == [f"{c.code} {c.name} ({c.severity})" for c in CODES.values()]
    lines = (DOCS.parent / "cli.md").read_text().splitlines()
    assert all(any(f"`{c.code}`" in line and f"`{c.name}`" in line for line in lines) for c in CODES.values())


def test_only_conflicts_with_a_named_rule_are_looked_for() -> None:
    a, b, c = rule("a", type="int"), rule("b", num_bits=4), rule("c", num_bits={4, 8}, type="float")
    assert [(o.first.name, o.second.name) for o in conflicts([c, b, a]).overlaps] == [("a", "b"), ("b", "c")]
    assert [(o.first.name, o.second.name) for o in conflicts([c, b, a], {"c"}).overlaps] == [("b", "c")]
    assert conflicts([c, b, a], {"b"}, fuel=1).open == (b,)


def test_cycles_do_not_depend_on_order() -> None:
    graph = {"a": ["b"], "b": ["c", "a"], "c": ["a"], "d": ["d"], "e": ["a"], "f": ["g"], "g": []}
    for names in itertools.islice(itertools.permutations(graph), 50):
        assert find_cycles({n: graph[n] for n in names}) == [["a", "b", "a"], ["d", "d"]]


def test_numbers_between_those_that_rules_name_are_looked_at() -> None:
    """A gap between two bounds that no rule names as a value."""
    region = Supported("sizes", rule("x", type="int", num_bits=4, strategy="group").predicate)
    low = rule("low", type="int", num_bits=4, group_size=between(1, 100), strategy="group")
    high = rule("high", type="int", num_bits=4, group_size=at_least(104), strategy="group")
    (found,) = check(low, high, supported=[region])
    sizes = {w.weights.group_size for w in found.witnesses if w.weights is not None}
    assert sizes and all(size is not None and 100 < size < 104 for size in sizes)


@pytest.mark.parametrize("turn", [1, -1])
def test_a_rule_that_is_out_decides_nothing_any_more(turn: int) -> None:
    """The judge between two plugins' rules conflicts with a built-in one itself: then the two conflict as well."""
    base = rule("base", type="int", num_bits=2, dist="quantdispatch")
    x, y = rule("x", type="int", num_bits={4, 8}, dist="x"), rule("y", type="int", num_bits={5, 8}, dist="y")
    judge = rule("judge", "x", "y", type="int", num_bits={2, 8}, dist="judge")
    rules, problems = settle([base], [x, y, judge][::turn])
    assert [r.name for r in rules] == ["base"]
    assert [p.distributions for p in problems] == [("judge",), ("x", "y")]
    apart = rule("judge", "x", "y", type="int", num_bits=8, dist="judge")
    rules, problems = settle([base], [x, y, apart][::turn])
    assert len(rules) == 4 and problems == []


def test_collecting_reports_an_empty_rule_and_leaves_it() -> None:
    rules, problems = settle([], [rule("never", strategy="channel", group_size=8, dist="x")])
    assert [r.name for r in rules] == ["never"] and [p.code for p in problems] == ["empty-rule"]


def test_without_plugins_nothing_is_analysed() -> None:
    """A start with built-in rules alone must not pay for the analysis."""
    code = "import sys; from quantdispatch.registry.registry import build; build(); "
    code += (
        "sys.exit(any('registry.analysis' in name or name == 'quantdispatch.registry.legal' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
