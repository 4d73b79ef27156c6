"""Domains and boxes: membership, intersection, emptiness, witnesses, and the three-valued test."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantdispatch import Absent, Args, Needs, When, at_least, between, not_in
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.domains import ANYTHING, Domain, domain
from quantdispatch.registry.facts import KernelSpec, LayerFacts
from quantdispatch.registry.legal import witness
from quantdispatch.registry.predicates import Box
from quantdispatch.registry.values import ABSENT, UNKNOWN

VALUES = [*range(-1, 10), None, True, False, "group", ABSENT]


def domains() -> st.SearchStrategy[Domain]:
    some = st.sets(st.sampled_from(VALUES), max_size=4).map(frozenset)
    edge = st.none() | st.integers(-1, 9)
    return st.builds(Domain, st.none() | some, edge, edge, some)


@given(domains(), domains(), st.sampled_from(VALUES))
def test_intersection_is_membership_in_both(a: Domain, b: Domain, value: object) -> None:
    assert (value in (a & b)) == (value in a and value in b)


@given(domains())
def test_empty_means_no_value(a: Domain) -> None:
    inside = [v for v in [*VALUES, *range(-20, 20), "other"] if v in a]
    assert a.empty == (not inside)


@given(domains(), domains())
def test_cuts_tell_domains_apart(a: Domain, b: Domain) -> None:
    points = [*a.cuts(), *b.cuts(), "a value nobody names", 10**6, -(10**6)]
    if all((p in a) == (p in b) for p in points):
        assert all((v in a) == (v in b) for v in VALUES)


@pytest.mark.parametrize(
    ("given_", "inside", "outside", "text"),
    [
        (4, [4], [True, 5, "4", None], "4"),
        (1, [1], [True], "1"),
        (True, [True], [1, False], "true"),
        ({4, 8}, [4, 8], [6], "4 | 8"),
        (range(2, 9), [2, 8], [1, 9, None], "2..8"),
        (at_least(1), [1, 500], [0, None, "1", True], ">= 1"),
        (between(2, 8), [2, 8], [1, 9], "2..8"),
        (not_in({"a"}), ["b", None, 3], ["a"], "anything but a"),
        (None, [None], [0, Absent], "none"),
        (Absent, [Absent], [None], "absent"),
        (ANYTHING, [0, None, "x"], [], "anything"),
    ],
)
def test_domain(given_: object, inside: list[object], outside: list[object], text: str) -> None:
    wanted = domain(given_)
    assert all(v in wanted for v in inside)
    assert not any(v in wanted for v in outside)
    assert str(wanted) == text


@pytest.mark.parametrize("bad", [range(0), range(0, 9, 2)])
def test_odd_ranges_are_refused(bad: range) -> None:
    with pytest.raises(ValueError, match="range"):
        domain(bad)


def facts(**fields: object) -> LayerFacts:
    return LayerFacts("linear", "pack-quantized", QuantArgs(num_bits=4, group_size=32, **fields))


def test_absent_is_not_unknown_and_survives_copies() -> None:
    assert pickle.loads(pickle.dumps(ABSENT)) is ABSENT
    assert copy.deepcopy(UNKNOWN) is UNKNOWN
    assert Absent is ABSENT is not UNKNOWN


def test_inputs_are_a_sum() -> None:
    with_inputs = LayerFacts("linear", "pack-quantized", None, QuantArgs(strategy="token", dynamic=True))
    assert When(inputs=Absent).test(facts().flat).status == "yes"
    assert When(inputs=Absent).test(with_inputs.flat).status == "no"
    assert When(inputs=Args()).test(with_inputs.flat).status == "yes"
    # only the side itself is reported when all of it is missing
    verdict = When(inputs=Args(num_bits=8, strategy="token")).test(facts().flat)
    assert [str(m) for m in verdict.mismatches] == ["inputs is absent, requires present"]


def test_a_union_is_yes_if_any_box_is() -> None:
    either = When(weights=Args(num_bits=4)) | When(weights=Args(num_bits=8))
    assert either.test(facts().flat).status == "yes"
    assert either.test(LayerFacts("linear", None, QuantArgs(num_bits=6)).flat).status == "no"


def test_unknown_answers_if_unless_something_else_says_no() -> None:
    spec = KernelSpec("linear", "linear", "s", None, None, None, n=None, k=None, dtype="bfloat16")
    verdict = Needs({"k%32": 0}, dtype="bfloat16").test(spec.flat)
    assert verdict.status == "if"
    assert [str(c) for c in verdict.conditions] == ["k%32 is unknown, requires 0"]
    assert Needs({"k%32": 0}, dtype="float16").test(spec.flat).status == "no"
    assert (Needs({"k%32": 0}) | Needs(dtype="bfloat16")).test(spec.flat).status == "yes"


@pytest.mark.parametrize(
    "make",
    [
        lambda: When(colour="red"),
        lambda: When(**{"weights.bits": 4}),
        lambda: Args(bits=4),
        lambda: When(weights=4),
        lambda: Needs({"k%33": 0}),
        lambda: When(inputs=None),
    ],
)
def test_unknown_fields_are_refused_where_they_are_written(make: object) -> None:
    with pytest.raises(TypeError):
        make()  # type: ignore[operator]


def test_open_facts_are_absent_when_nobody_states_them() -> None:
    assert Needs({"package.flux": Absent}).test({}).status == "yes"
    assert Needs({"isa.amx_int8": True}).test({}).status == "no"


@pytest.mark.parametrize(
    ("predicate", "exists"),
    [
        (When(weights=Args(strategy="group", group_size=40)), True),
        (When(weights=Args(strategy="channel", group_size=128)), False),
        (When(weights=Args(strategy="token", dynamic=False)), False),
        (When(weights=Args(strategy="block", block_structure=None)), False),
        (When(weights=Args(dynamic="local", strategy="group", group_size=16)), False),
        (When(weights=Absent, inputs=Absent), True),
        (When(kind={"moe"}, inputs=Args(strategy="group")), True),
        (When(kind={"moe"}, inputs=Args(strategy="block")), False),
    ],
)
def test_witnesses_are_legal(predicate: When, exists: bool) -> None:
    box: Box = predicate.boxes[0]
    found = witness(box)
    assert (found is not None) == exists
    if found is not None:
        assert box.test(found.flat).status == "yes"


def test_a_predicate_prints_and_serializes() -> None:
    when = When(kind={"linear", "lm_head"}, weights=Args(num_bits=between(2, 8)), inputs=Absent)
    assert str(when) == ("inputs: absent, kind: linear | lm_head, weights: present, weights.num_bits: 2..8")
    assert when.boxes[0].to_json()["weights.num_bits"] == {"min": 2, "max": 8}
    assert pickle.loads(pickle.dumps(when)) == when
