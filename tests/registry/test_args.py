"""Quant args on their own: identity, words, JSON, dtype names, presets."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from quantdispatch.registry.args import STRATEGIES, QuantArgs
from quantdispatch.registry.config import ConfigError, read_args
from quantdispatch.registry.config_dtypes import DTYPE_NAMES, dtype_name
from quantdispatch.registry.config_reading import Notes
from quantdispatch.registry.presets import PRESETS, preset

SEMANTIC = sorted(set(QuantArgs.model_fields) - {"observer", "observer_kwargs"})
FP8: dict[str, Any] = {"num_bits": 8, "type": "float"}
FP4: dict[str, Any] = {"num_bits": 4, "type": "float"}


@st.composite
def legal_args(draw: st.DrawFn) -> QuantArgs:
    """Args that are accepted: drawn freely, kept when they validate."""
    raw = draw(
        st.fixed_dictionaries(
            {
                "num_bits": st.sampled_from([2, 3, 4, 5, 6, 7, 8, 16]),
                "type": st.sampled_from(["int", "float"]),
                "symmetric": st.booleans(),
                "strategy": st.sampled_from([None, *STRATEGIES]),
                "group_size": st.sampled_from([None, -1, 0, 16, 128]),
                "dynamic": st.sampled_from([False, True, "local"]),
                "actorder": st.sampled_from([None, "weight", "static", "group"]),
                "scale_dtype": st.sampled_from([None, "torch.uint8", "bfloat16"]),
                "zp_dtype": st.sampled_from([None, "torch.int8", "uint8"]),
                "observer": st.sampled_from([None, "minmax"]),
                "observer_kwargs": st.sampled_from([{}, {"averaging": 0.5}]),
            }
        )
    )
    if raw["strategy"] == "block":
        raw["block_structure"] = [128, 64]
    try:
        return QuantArgs(**raw)
    except ValidationError:
        # Always legal, so that few draws are lost.
        return QuantArgs(num_bits=4, group_size=raw["group_size"] or 32, symmetric=raw["symmetric"])


@given(legal_args())
def test_json_round_trip(args: QuantArgs) -> None:
    text = json.dumps(args.to_json())
    again = QuantArgs(**json.loads(text))
    assert again == args and hash(again) == hash(args)
    assert (again.observer, again.observer_kwargs) == (args.observer, args.observer_kwargs)
    assert again.to_json() == args.to_json()


@given(legal_args())
def test_copies_are_equal(args: QuantArgs) -> None:
    assert pickle.loads(pickle.dumps(args)) == copy.deepcopy(args) == args
    assert args.strategy is not None and args.zp_dtype in DTYPE_NAMES


@given(legal_args(), legal_args())
def test_equal_args_have_equal_words(left: QuantArgs, right: QuantArgs) -> None:
    if left == right:
        assert left.describe() == right.describe()
    assert "\n" not in left.describe() and len(left.describe()) < 80


def test_json_leaves_out_what_says_nothing() -> None:
    assert QuantArgs(num_bits=4, group_size=64).to_json() == {
        "num_bits": 4,
        "type": "int",
        "symmetric": True,
        "strategy": "group",
        "dynamic": False,
        "group_size": 64,
    }
    stored = QuantArgs(**FP4, group_size=16, symmetric=False, scale_dtype="uint8", zp_dtype="torch.uint8").to_json()
    assert (stored["scale_dtype"], stored["zp_dtype"]) == ("torch.uint8", "torch.uint8")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"num_bits": 4, "group_size": 64, "symmetric": False}, "int4 asymmetric, group 64"),
        ({"num_bits": 4, "group_size": 128}, "int4 symmetric, group 128"),
        ({"num_bits": 8, "group_size": -1}, "int8 symmetric, channel"),
        ({"num_bits": 4, "group_size": 128, "actorder": "group"}, "int4 symmetric, group 128, g_idx"),
        ({"num_bits": 4, "group_size": 128, "actorder": "weight"}, "int4 symmetric, group 128"),
        ({}, "int8 static tensor"),
        ({"symmetric": False}, "int8 static asymmetric tensor"),
        ({"strategy": "token", "dynamic": True}, "int8 dynamic token"),
        ({"strategy": "token", "dynamic": True, "symmetric": False}, "int8 dynamic asymmetric token"),
        ({**FP8, "strategy": "token", "dynamic": True}, "fp8 dynamic token"),
        ({**FP8, "strategy": "block", "block_structure": "128x64"}, "fp8 block 128x64"),
        ({**FP8, "group_size": 128, "dynamic": True}, "fp8 dynamic group 128"),
        ({**FP8, "group_size": -1}, "fp8 channel"),
        ({**FP4, "group_size": 32, "scale_dtype": "torch.uint8"}, "fp4 group 32, uint8 scales"),
        ({**FP4, "group_size": 16, "dynamic": "local"}, "fp4 local-dynamic tensor_group 16"),
    ],
)
def test_words(raw: dict[str, Any], words: str) -> None:
    assert QuantArgs(**raw).describe() == words


def test_calibration_takes_no_part_in_equality() -> None:
    plain, observed = QuantArgs(), QuantArgs(observer="mse", observer_kwargs={"p": [2.4]})
    assert plain == observed and len({plain, observed}) == 1
    assert plain != QuantArgs(symmetric=False) and plain != "int8 static tensor"


def test_args_are_immutable() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        QuantArgs().num_bits = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("raw", "field", "observed", "required"),
    [
        ({"num_bits": {"experts": 4}}, "num_bits", '{"experts": 4}', "an integer"),
        ({"num_bits": None}, "num_bits", "null", "an integer"),
        ({"num_bits": 2**40}, "num_bits", str(2**40), "an integer of 32 bits"),
        ({"num_bits": 5, "type": "float"}, "num_bits", "5", "4, 6 or 8 with type float"),
        ({"type": "uint"}, "type", '"uint"', "'int' or 'float'"),
        ({"symmetric": "maybe"}, "symmetric", '"maybe"', "true or false"),
        ({"dynamic": "true"}, "dynamic", '"true"', "true, false or 'local'"),
        ({"dynamic": None}, "dynamic", "null", "true or false"),
        ({"group_size": "128"}, "group_size", '"128"', "an integer, -1 for channel, or null"),
        ({"group_size": -2}, "group_size", "-2", "a positive integer, -1 for channel, or null"),
        ({"strategy": "token"}, "dynamic", "false", "true with strategy token"),
        ({"strategy": "group"}, "group_size", "null", "a positive integer"),
        ({"strategy": "channel", "group_size": 32}, "strategy", '"channel"', "group or tensor_group"),
        ({"strategy": "block"}, "block_structure", "null", "[rows, columns]"),
        ({"block_structure": "2x4x8"}, "block_structure", '"2x4x8"', "[rows, columns], two positive integers"),
        ({"group_size": -1, "dynamic": True}, "dynamic", "true", "strategy in token, tensor, tensor_group, group"),
        ({"actorder": "columns"}, "actorder", '"columns"', "'weight', 'static', 'group', a boolean or null"),
        ({"actorder": "group"}, "strategy", '"tensor"', "group or tensor_group"),
        ({"scale_dtype": "fp8"}, "scale_dtype", '"fp8"', "a dtype such as 'torch.float8_e4m3fn'"),
        ({"observer_kwargs": None}, "observer_kwargs", "null", "an object"),
        ({"observer": 3}, "observer", "3", "a string"),
    ],
)
def test_errors_name_the_field(raw: dict[str, Any], field: str, observed: str, required: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_args(raw, "config_groups.group_0.weights", Notes())
    error = caught.value
    assert error.field == f"config_groups.group_0.weights.{field}"
    assert (error.observed, error.required) == (observed, required)
    assert error.exit_code == 2 and "\n" not in str(error) and field in str(error)


@pytest.mark.parametrize("raw", ["int8", 8, [], True])
def test_args_that_are_no_object(raw: Any) -> None:
    with pytest.raises(ConfigError, match="weights: wrong value .*required an object"):
        read_args(raw, "weights", Notes())


def test_unknown_keys_are_kept_and_reported() -> None:
    notes = Notes()
    args = read_args({"num_bits": 4, "group_size": 32, "rotation": {"kind": "had"}}, "weights", notes)
    assert args == QuantArgs(num_bits=4, group_size=32)
    assert notes.unknown == {"weights.rotation": {"kind": "had"}}
    assert [(p.code, p.path) for p in notes.problems] == [("unknown-key", "weights.rotation")]


def test_a_misspelt_argument_in_code_is_an_error() -> None:
    with pytest.raises(ValidationError, match="groupsize"):
        QuantArgs(groupsize=64)  # type: ignore[call-arg]


def test_dtype_names_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="compares the table with torch's own dtypes")
    real = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
    for name, dtype in real.items():
        assert dtype_name(name) == dtype_name(f"torch.{name}") == dtype_name(dtype) == str(dtype).removeprefix("torch.")
    assert DTYPE_NAMES <= {str(dtype).removeprefix("torch.") for dtype in real.values()}


@pytest.mark.parametrize(
    "name", ["", "torch.", "torch.torch.int8", "Tensor", "fp8", "INT8", " int8", None, 8, ["int8"]]
)
def test_no_dtype(name: Any) -> None:
    assert dtype_name(name) is None


def test_presets_equal_those_of_compressed_tensors() -> None:
    schemes = pytest.importorskip("compressed_tensors.quantization.quant_scheme", reason="compares the preset tables")
    for name, theirs in schemes.PRESET_SCHEMES.items():
        mine = PRESETS[name]
        assert set(mine) == set(theirs), name
        for side, args in theirs.items():
            # Field by field: the writers' own dump leaves out the zp_dtype of symmetric args.
            assert QuantArgs(**mine[side]) == QuantArgs(**{field: getattr(args, field) for field in SEMANTIC}), name
    # Older releases have fewer; only the newest known here has them all.
    assert set(PRESETS) >= set(schemes.PRESET_SCHEMES) >= {"W4A16", "W8A8", "FP8", "NVFP4", "MXFP4"}


def test_presets_in_any_case() -> None:
    assert preset("w4a16") is preset("W4A16") is PRESETS["W4A16"] and preset("W9A9") is None
