"""Errors are one line, carry their facts, survive pickling, and have the exit codes of the contract."""

import copy
import json
import pickle

import pytest

import quantdispatch as qd
from quantdispatch.registry.errors import UnreadableCheckpointError

CODES = {
    qd.QuantDispatchError: 1,
    qd.ConfigError: 2,
    qd.CheckpointError: 1,
    UnreadableCheckpointError: 2,
    qd.NoSchemeFound: 1,
    qd.NoKernelFound: 1,
    qd.PluginError: 1,
    qd.PlanError: 1,
}


@pytest.mark.parametrize("kind", list(CODES))
def test_exit_codes_and_base(kind: type[qd.QuantDispatchError]) -> None:
    assert issubclass(kind, qd.QuantDispatchError)
    assert kind("x").exit_code == CODES[kind]


def test_one_line_with_every_fact() -> None:
    error = qd.ConfigError(
        "not a\nnumber", layer="model.a", field="weights.num_bits", observed={"experts": 4}, required="an integer",
        remedy="write one group per width",
    )  # fmt: skip
    assert str(error) == (
        "model.a: not a number (field weights.num_bits, observed {'experts': 4}, required an integer); "
        "write one group per width"
    )


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_copies_keep_everything(clone: object) -> None:
    inner = qd.NoSchemeFound("none", layer="a", nearest=("one", "two"))
    error = clone(qd.PlanError("two layers", errors=(inner,)))  # type: ignore[operator]
    assert isinstance(error, qd.PlanError)
    assert error.errors[0].nearest == ("one", "two")
    assert str(error.errors[0]) == "a: none"
    unnamed = dict.fromkeys(("field", "observed", "required", "remedy"))
    assert error.errors[0].to_json() == {
        **{"code": "QD700", "type": "NoSchemeFound", "message": "a: none", "layer": "a", "nearest": ["one", "two"]},
        **unnamed,
    }


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (True, True),
        (3, 3),
        (0.5, 0.5),
        (float("nan"), "nan"),
        (("a", 1), ["a", 1]),
        ({"b": 2}, "{'b': 2}"),
    ],
)
def test_json_has_a_form_of_every_value(value: object, shown: object) -> None:
    document = json.loads(json.dumps(qd.ConfigError("wrong", observed=value).to_json(), allow_nan=False))
    assert document["observed"] == shown and type(document["observed"]) is type(shown)


@pytest.mark.parametrize(
    ("layer", "message", "line"),
    [
        ("a", "weights are wrong", "a: weights are wrong"),
        ("fc", "fc1.weight is missing", "fc: fc1.weight is missing"),
        ("fc", "fc.weight is missing", "fc.weight is missing"),
        ("up", "layer.up is missing", "up: layer.up is missing"),
    ],
)
def test_a_layer_is_named_unless_the_message_does(layer: str, message: str, line: str) -> None:
    assert str(qd.CheckpointError(message, layer=layer)) == line


def test_what_a_terminal_would_act_upon_is_written_out() -> None:
    error = qd.ConfigError("format \x1b[2J\x00 has no rule", layer="a\u202eb", remedy="none\x07")
    assert str(error) == r"a\u202eb: format \x1b[2J\x00 has no rule; none\x07"
