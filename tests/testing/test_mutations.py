"""Every row can fail, and a row that cannot is found."""

from collections import Counter
from typing import Any

import pytest
import tiny_plans as tiny
from hypothesis import given
from hypothesis import strategies as st
from usual_kernels import INT4

from quantdispatch import Absent, Args, Rule, When
from quantdispatch.registry.args import QuantArgs
from quantdispatch.testing import (
    MutationSurvived,
    Row,
    RowMismatch,
    TableError,
    check_mutations,
    check_row,
    mutations,
    registry_with,
)
from quantdispatch.testing.args_changes import VALUES, args_changes

BUILT_IN = registry_with()
LAYER = "model.layers.0.mlp.down_proj"
FACTS: dict[str, Any] = {
    "id": "x", "format": "pack-quantized", "weights": {"num_bits": 4, "group_size": 128}, "rule": "wNa16_int",
}  # fmt: skip
MISS = {**FACTS, "format": "dense", "rule": "", "error": "NoSchemeFound", "near": "wNa16_int"}


def row(**changes: Any) -> Row:
    return Row.read({**FACTS, **changes})


EXPECTING = {
    "names": row(scheme="wNa16_int", kernel=INT4, backend="cpu", deviations=[], shape=[64, 256]),
    "an error": Row.read({**MISS, "message": ["no rule accepts", "dense"], "near": ["wNa16_int"]}),
    "no kernel": row(force_backend="cpu", device="cuda:sm90", error="NoKernelFound", scheme="wNa16_int", kernel=""),
    "a config": Row.read(
        {"id": "x", "config": tiny.config(), "layer": LAYER, "rule": "wNa16_int", "kind": "linear", "target": "Linear",
         "group": "group_0", "ignored_by": "", "format": "pack-quantized", "problems": []}
    ),
    "an ignored layer": Row.read(
        {"id": "x", "config": tiny.config(), "layer": "lm_head", "scheme": "dense", "ignored_by": "lm_head"}
    ),
    "a config error": row(weights={"strategy": "token"}, rule="", error="ConfigError", message="weights.dynamic"),
}  # fmt: skip


@pytest.mark.parametrize("sound", EXPECTING.values(), ids=EXPECTING)
def test_every_expectation_that_is_changed_fails_the_row(sound: Row) -> None:
    check_row(sound, BUILT_IN)
    check_mutations(sound, registry=BUILT_IN)
    changed = [m for m in mutations(sound, BUILT_IN) if m.of == "expectation"]
    assert {m.what for m in changed} >= {*sound.expects, "error"}
    for mutation in changed:
        with pytest.raises(RowMismatch):
            check_row(mutation.row, BUILT_IN)


def test_facts_are_changed_one_at_a_time_and_stay_legal() -> None:
    seen = Counter(m.what for m in mutations(row(), BUILT_IN) if m.of == "fact")
    fields = {"type", "num_bits", "strategy", "symmetric", "dynamic", "group_size", "actorder", "scale_dtype"}
    assert {"kind", "format", "weights", "inputs", "outputs", *(f"weights.{name}" for name in fields)} <= set(seen)
    for mutation in mutations(row(), BUILT_IN):
        if mutation.of == "fact" and "weights" in mutation.row.asks:
            QuantArgs(**mutation.row.asks["weights"])


@given(st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in VALUES.items()}))
def test_changed_args_are_legal_and_differ_where_they_say(fields: dict[str, Any]) -> None:
    try:
        before = QuantArgs(**fields)
    except ValueError:
        # what cannot be read is changed too, into anything: that is how a row about an error can be made to fail
        assert len(list(args_changes(fields))) > len(VALUES)
        return
    #: what may follow a changed field
    follows = {"strategy": {"group_size", "block_structure", "dynamic", "actorder"}, "type": {"zp_dtype"}}
    follows["num_bits"] = follows["type"]
    for name, value, changed in args_changes(fields):
        after = QuantArgs(**changed)
        differing = {key for key in VALUES if getattr(before, key) != getattr(after, key)}
        assert getattr(after, name) == value
        assert name in differing <= {name} | follows.get(name, set())


#: three things keep it out, so no change of one or two makes it resolve
HOPELESS = {
    "id": "x", "format": "dense", "weights": {"num_bits": 16}, "inputs": {"num_bits": 16},
    "outputs": {"num_bits": 16}, "error": "NoSchemeFound",
}  # fmt: skip


def test_a_row_that_no_fact_can_fail_is_dead() -> None:
    with pytest.raises(MutationSurvived, match="whatever one or two facts are changed to: it cannot fail"):
        check_mutations(Row.read(HOPELESS), registry=BUILT_IN)
    two = {key: value for key, value in HOPELESS.items() if key != "outputs"}
    check_mutations(Row.read(two), registry=BUILT_IN)


def test_a_foreign_config_is_alive_by_its_method() -> None:
    foreign = {"config": {"quant_method": "nonesuch", "config_groups": {"W4A16": ["Linear"]}}, "error": "ConfigError"}
    check_mutations(Row.read({"id": "x", **foreign}), registry=BUILT_IN)


def test_a_row_that_holds_whatever_it_asks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from quantdispatch.testing import mutating

    real = mutating.observe

    def deaf(asked: Row, registry: Any) -> Any:
        return real(row(), registry)

    monkeypatch.setattr(mutating, "observe", deaf)
    with pytest.raises(MutationSurvived, match="it cannot fail") as caught:
        check_mutations(row(), registry=BUILT_IN)
    assert [name for name, _ in caught.value.survivors] == ["x"]


@pytest.mark.parametrize("field", ["rule", "error"])
def test_an_expectation_that_is_not_compared_is_found(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from quantdispatch.testing import mutating

    real = mutating.differences
    monkeypatch.setattr(mutating, "differences", lambda asked, seen: [d for d in real(asked, seen) if d.field != field])
    with pytest.raises(MutationSurvived, match=f"holds as well with {field} = "):
        check_mutations(row(), registry=BUILT_IN)


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"sensitive": ["weights.num_bits", "format"], "insensitive": ["weights.symmetric"]}, ""),
        ({"sensitive": ["weights.symmetric"]}, "calls weights.symmetric sensitive, and holds"),
        ({"insensitive": ["weights.num_bits"]}, "weights.num_bits insensitive, and fails with weights.num_bits = 16"),
        ({"insensitive": ["weights.*"]}, "calls weights.type insensitive"),
    ],
)  # fmt: skip
def test_claims_about_facts_are_tried(claims: dict[str, Any], words: str) -> None:
    if not words:
        check_mutations(row(**claims), registry=BUILT_IN)
        return
    with pytest.raises(MutationSurvived, match=words):
        check_mutations(row(**claims), registry=BUILT_IN)


@pytest.mark.parametrize("claim", [{"sensitive": "weights.bits"}, {"insensitive": "inputs.type"}])
def test_a_claim_about_a_fact_that_is_not_there_is_refused(claim: dict[str, Any]) -> None:
    with pytest.raises(TableError, match="names (weights.bits|inputs.type)"):
        check_mutations(row(**claim), registry=BUILT_IN)


def test_strict_asks_for_every_fact_that_does_not_matter() -> None:
    with pytest.raises(MutationSurvived) as caught:
        check_mutations(row(), registry=BUILT_IN, strict=True)
    said = str(caught.value).rpartition("insensitive = ")[2]
    check_mutations(row(insensitive=eval(said)), registry=BUILT_IN, strict=True)


def test_strict_asks_an_error_what_it_hangs_on() -> None:
    with pytest.raises(MutationSurvived, match=r'sensitive = \[.*"format"'):
        check_mutations(Row.read(MISS), registry=BUILT_IN, strict=True)
    check_mutations(Row.read({**MISS, "sensitive": "format"}), registry=BUILT_IN, strict=True)


def test_a_row_that_does_not_hold_is_not_mutated() -> None:
    with pytest.raises(RowMismatch):
        check_mutations(row(rule="dense"), registry=BUILT_IN)


def test_rows_of_a_plugin_are_changed_against_its_registry() -> None:
    own = Rule(
        "own",
        When(format="sample", weights=Args(num_bits=4), inputs=Absent),
        "quantdispatch.schemes.wna16_int:WNA16Int",
    )
    registry = registry_with(own)
    check_mutations(row(format="sample", rule="own", sensitive=["weights.num_bits", "inputs"]), registry=registry)
