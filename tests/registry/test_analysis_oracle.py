"""The analysis against enumeration: every layer of a small domain, every question answered by trying all of them."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from quantdispatch import Absent, Args, Rule, When
from quantdispatch.registry.analysis import Finding, check_rules
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.domains import Domain, at_least, at_most, not_in
from quantdispatch.registry.facts import LayerFacts
from quantdispatch.registry.legal import LEGAL
from quantdispatch.registry.rules.supported import Supported

TABLES, PARTS = 3040, 8
KINDS, FORMATS = ("linear", "moe"), ("pack-quantized", "int-quantized")
WEIGHTS: dict[str, tuple[Any, ...]] = {
    "num_bits": (4, 8),
    "strategy": ("channel", "group"),
    "symmetric": (True, False),
    "group_size": (None, 32, 128),
}
INPUTS: dict[str, tuple[Any, ...]] = {"strategy": ("token", "group"), "group_size": (None, 32, 128)}
FIXED: dict[str, Any] = {
    "type": "int", "num_bits": 8, "symmetric": True, "dynamic": False, "block_structure": None, "actorder": None,
    "scale_dtype": None, "zp_dtype": "int8",
}  # fmt: skip
SCHEMES = ("one.module:A", "one.module:B")


def legal(values: dict[str, tuple[Any, ...]], **fixed: Any) -> Iterator[QuantArgs]:
    """All args with these values that validate."""
    for chosen in itertools.product(*values.values()):
        try:
            yield QuantArgs(**{**FIXED, **fixed, **dict(zip(values, chosen, strict=True))})
        except ValidationError:
            continue


def every_layer() -> list[LayerFacts]:
    weights = list(legal(WEIGHTS))
    inputs = [None, *legal(INPUTS, dynamic=True)]
    return [LayerFacts(*parts) for parts in itertools.product(KINDS, FORMATS, weights, inputs)]


LAYERS = every_layer()
ALL = frozenset(range(len(LAYERS)))
SMALL = LEGAL.restricted(
    {
        "kind": KINDS,
        "format": FORMATS,
        **{f"{side}.{name}": (value,) for name, value in FIXED.items() for side in ("weights", "inputs", "outputs")},
        "inputs.dynamic": (True,),
        **{f"weights.{name}": values for name, values in WEIGHTS.items()},
        **{f"inputs.{name}": values for name, values in INPUTS.items()},
        # neither layers without weights nor outputs are in the small domain
        "outputs.type": (),
    }
)


def some(rng: random.Random, values: Sequence[Any]) -> Any:
    return set(rng.sample(list(values), rng.randint(1, len(values))))


def size(rng: random.Random) -> Any:
    values = [some(rng, (None, 32, 128)), at_least(rng.choice((1, 32, 33, 128))), at_most(rng.choice((32, 127, 128)))]
    return rng.choice([*values, not_in({rng.choice((None, 32, 128))})])


def random_when(rng: random.Random) -> When:
    fields: dict[str, Any] = {}
    if rng.random() < 0.5:
        fields["kind"] = some(rng, KINDS)
    if rng.random() < 0.5:
        fields["format"] = some(rng, FORMATS)
    weights = {n: some(rng, v) for n, v in WEIGHTS.items() if n != "group_size" and rng.random() < 0.5}
    if rng.random() < 0.3:
        weights["group_size"] = size(rng)
    fields["weights"] = Args(**weights)
    kind = rng.random()
    if kind < 0.4:
        fields["inputs"] = Absent
    elif kind < 0.7:
        inputs: dict[str, Any] = {"strategy": some(rng, INPUTS["strategy"])} if rng.random() < 0.7 else {}
        fields["inputs"] = Args(**inputs, **({"group_size": size(rng)} if rng.random() < 0.4 else {}))
    if rng.random() < 0.2:
        fields["same_group"] = rng.choice([True, False, Absent, {True, False}])
    return When(fields)


def random_table(rng: random.Random) -> list[Rule]:
    rules: list[Rule] = []
    for index in range(rng.randint(2, 5)):
        when = [random_when(rng) for _ in range(rng.choice((1, 1, 2, 3)))]
        earlier = [r.name for r in rules]
        overrides = tuple(n for n in earlier if rng.random() < 0.55)
        rules.append(Rule(f"r{index}", when, rng.choice(SCHEMES), overrides=overrides))
    if rng.random() < 0.15:  # one that the others cover, as often happens when rules grow old
        a, b = rng.sample(rules, 2)
        rules = [r for r in rules if r in (a, b)]
        covered = [random_when(rng)]
        rules.append(Rule("covered", covered, SCHEMES[0]))
        rules = [Rule(r.name, r.predicate, r.scheme, ("covered",)) if r.name != "covered" else r for r in rules]
    return rules


@functools.cache
def where(name: str, wanted: Domain) -> frozenset[int]:
    """The layers whose field ``name`` has a wanted value."""
    return frozenset(i for i, x in enumerate(LAYERS) if x.flat[name] in wanted)


class Oracle:
    """Answers by trying every layer."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = {r.name: r for r in rules}
        self.boxes = {
            r.name: [set(ALL.intersection(*(where(*field) for field in box.fields))) for box in r.predicate.boxes]
            for r in rules
        }
        self.region = {name: set().union(*boxes) for name, boxes in self.boxes.items()}
        self._matching = [frozenset(n for n, region in self.region.items() if i in region) for i in range(len(LAYERS))]

    def matching(self, layer: int) -> frozenset[str]:
        return self._matching[layer]

    def winners(self, matching: frozenset[str]) -> frozenset[str]:
        return frozenset(n for n in matching if not any(n in self.rules[m].overrides for m in matching))

    def outcome(self, matching: frozenset[str]) -> Any:
        winners = self.winners(matching)
        if len(winners) == 1:
            return self.rules[next(iter(winners))].scheme
        return winners

    def empty(self) -> set[str]:
        return {name for name, region in self.region.items() if not region}

    def overlaps(self) -> set[frozenset[str]]:
        pairs = (itertools.combinations(self.winners(self.matching(i)), 2) for i in range(len(LAYERS)))
        return {frozenset(pair) for some_ in pairs for pair in some_}

    def idle(self) -> set[tuple[str, str]]:
        return {
            (name, other)
            for name, rule in self.rules.items()
            for other in rule.overrides
            if self.region[name] and not self.region[name] & self.region[other]
        }

    def blockers(self, name: str, layer: int) -> set[str]:
        matching = self.matching(layer)
        beaters = {m for m in matching if name in self.rules[m].overrides}
        return beaters or set(self.winners(matching)) - {name}

    def shadowed(self) -> set[str]:
        return {
            name
            for name, region in self.region.items()
            if region
            and all(self.winners(self.matching(i)) != {name} and self.blockers(name, i) for i in region)
            and any(name in self.rules[m].overrides for i in region for m in self.matching(i))
        }

    def redundant(self) -> set[str]:
        return {
            name
            for name, region in self.region.items()
            if region and all(self.outcome(self.matching(i)) == self.outcome(self.matching(i) - {name}) for i in region)
        }

    def gap(self, region: Supported) -> set[int]:
        inside = {
            i for box in region.predicate.boxes for i in ALL.intersection(*(where(*field) for field in box.fields))
        }
        return inside - set().union(*self.region.values())


def named(found: Sequence[Finding], name: str) -> list[Finding]:
    return [f for f in found if f.name == name]


def show(facts: LayerFacts, oracle: Oracle) -> frozenset[str]:
    """The rules that match a witness, which must be a layer of the small domain."""
    assert facts in LAYERS
    return oracle.matching(LAYERS.index(facts))


def agree(rules: list[Rule], region: Supported) -> set[str]:
    """One table: every finding is true, and nothing that is true is missing. Returns what was found."""
    found = check_rules(rules, against=(), supported=[region], universe=SMALL, schemes=False)
    oracle = Oracle(rules)
    assert {f.rules[0] for f in named(found, "empty-rule")} == oracle.empty()
    assert {frozenset(f.rules) for f in named(found, "overlap")} == oracle.overlaps()
    for f in named(found, "overlap"):
        assert set(f.rules) <= oracle.winners(show(f.witnesses[0], oracle))
    assert {(f.rules[0], f.rules[1]) for f in named(found, "idle-override")} == oracle.idle()
    shadowed = {f.rules[0]: f for f in named(found, "shadowed-rule")}
    assert set(shadowed) == oracle.shadowed()
    for name, f in shadowed.items():
        check_irredundant(name, set(f.rules[1:]), oracle)
        assert all(oracle.winners(show(w, oracle)) != {name} for w in f.witnesses) and f.witnesses
    assert {f.rules[0] for f in named(found, "redundant-rule")} == oracle.redundant() - set(shadowed)
    check_boxes(found, oracle)
    gap = named(found, "gap")
    holes = oracle.gap(region)
    assert [f.count for f in gap] == ([len(holes)] if holes else [])
    for f in gap:
        assert len(set(f.witnesses)) == min(3, len(holes))
        assert {LAYERS.index(w) for w in f.witnesses} <= holes
    return {f.name for f in found}


def check_irredundant(name: str, by: set[str], oracle: Oracle) -> None:
    needs = [oracle.blockers(name, i) for i in oracle.region[name]]
    assert all(need & by for need in needs)
    for member in by:
        assert any(not need & (by - {member}) for need in needs), f"{member} is not needed to shadow {name}"


def check_boxes(found: Sequence[Finding], oracle: Oracle) -> None:
    """Boxes that are called redundant can go together; those that stay are each needed."""
    for name, boxes in oracle.boxes.items():
        if not oracle.region[name]:
            continue
        about = [f for f in found if f.rules[:1] == (name,)]
        empty = {int(f.message.split()[1]) - 1 for f in named(about, "empty-box")}
        gone = {int(f.message.split()[1]) - 1 for f in named(about, "redundant-box")}
        assert empty == {i for i, box in enumerate(boxes) if not box}
        stay = [i for i in range(len(boxes)) if i not in gone | empty]
        assert set().union(*(boxes[i] for i in stay)) == oracle.region[name]
        for i in stay:
            assert boxes[i] - set().union(*(boxes[j] for j in stay if j != i))


def test_the_small_domain_is_what_it_should_be() -> None:
    # 2 kinds, 2 formats, (1 channel + 2 group) x 2 bits x 2 symmetries, (none, token, 2 group)
    assert len(LAYERS) == 2 * 2 * 12 * 4
    whole = Rule("all", When(weights=Args()), SCHEMES[0])
    region = Supported("all", When(weights=Args()))
    assert check_rules([whole], against=(), supported=[region], universe=SMALL, schemes=False) == ()
    (gap,) = check_rules([], against=(), supported=[region], universe=SMALL, schemes=False)
    assert gap.count == len(LAYERS)


def test_the_oracle_sees_what_rules_see() -> None:
    rng = random.Random("rules")
    for rule in (rule for _ in range(20) for rule in random_table(rng)):
        tested = {i for i, x in enumerate(LAYERS) if rule.predicate.test(x.flat).status == "yes"}
        assert Oracle([rule]).region[rule.name] == tested


@pytest.mark.parametrize("part", range(PARTS))
def test_analysis_agrees_with_enumeration(part: int) -> None:
    rng = random.Random(f"tables {part}")
    seen: set[str] = set()
    for _ in range(TABLES // PARTS):
        seen |= agree(random_table(rng), Supported("region", random_when(rng)))
    assert seen >= {
        *("empty-rule", "empty-box", "shadowed-rule", "redundant-rule", "redundant-box", "overlap", "idle-override"),
        "gap",
    }
