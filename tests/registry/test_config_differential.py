"""Whole configs against ``QuantizationConfig`` of the installed compressed-tensors: same verdict, same schemes.

``DEVIATIONS`` are the config-level rows of ``docs/reading-configs.md``.
"""

from __future__ import annotations

import copy
import itertools
import warnings
from typing import Any

import pytest

from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.config import parse_config
from quantdispatch.registry.errors import ConfigError
from quantdispatch.registry.presets import PRESETS

quantization = pytest.importorskip("compressed_tensors.quantization", reason="the differential test needs it")

SEMANTIC = sorted(set(QuantArgs.model_fields) - {"observer", "observer_kwargs"})
INT4: dict[str, Any] = {"num_bits": 4, "group_size": 128}
FP8: dict[str, Any] = {"num_bits": 8, "type": "float"}
SIDES: dict[str, Any] = {
    "none": None,
    "default": {},
    "int4": INT4,
    "static": FP8,
    "token": {**FP8, "strategy": "token", "dynamic": True},
    "channel": {**FP8, "group_size": -1},
    "block": {**FP8, "strategy": "block", "block_structure": [128, 128]},
    "head": {**FP8, "strategy": "attn_head"},
    "local": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "dynamic": "local"},
    "weight-order": {**INT4, "actorder": "weight"},
    "no-order": {**INT4, "actorder": False},
    "bad": {"num_bits": "four"},
}
FORMATS = (None, "pack-quantized", "naive-quantized", "dense", "mixed-precision", 3)
TOP: dict[str, tuple[Any, ...]] = {
    "format": ("pack-quantized", "mixed-precision", 3),
    "ignore": (None, [], ["lm_head"], "lm_head", [3], {}),
    "kv_cache_scheme": (None, {}, FP8, 8, {"num_bits": None}),
    "quantization_status": ("initialized", "calibration", "frozen", "compressed", 3),
    "global_compression_ratio": (None, 1.5, "1.5", "x", []),
    "config_groups": (
        *({}, {"W4A16": ["Linear"]}, {"w8a8": ["Linear"]}, {"W9A9": ["Linear"]}, {"W4A16": [3]}, {"g": None}),
        *([], "x", {"g": {"weights": INT4}}, {"g": {"targets": "Linear"}}, {"g": {"targets": []}}),
    ),
}


def base(**changes: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": INT4}}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups, **changes}


def theirs(raw: dict[str, Any]) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = quantization.QuantizationConfig(**copy.deepcopy(raw))
    except Exception:
        return None
    return config


def ours(raw: dict[str, Any]) -> Any:
    try:
        return parse_config(raw)
    except ConfigError:
        return None


def args(value: Any) -> QuantArgs | None:
    return None if value is None else QuantArgs(**{field: getattr(value, field) for field in SEMANTIC})


def agree(raw: dict[str, Any]) -> bool:
    """Both refuse, or both read the same. Returns whether they read."""
    mine, its = ours(raw), theirs(raw)
    assert (mine is None) == (its is None), raw
    if mine is None:
        return False
    assert [group.name for group in mine.groups] == list(its.config_groups)
    for group, scheme in zip(mine.groups, its.config_groups.values(), strict=True):
        assert group.targets == tuple(scheme.targets)
        assert group.weights == args(scheme.weights)
        assert group.inputs == args(scheme.input_activations)
        assert group.outputs == args(scheme.output_activations)
        assert group.format == (None if scheme.format is None else getattr(scheme.format, "value", scheme.format))
    assert mine.kv_cache_scheme == args(its.kv_cache_scheme)
    assert mine.ignore == tuple(its.ignore or ())
    assert (mine.format, mine.global_compression_ratio) == (its.format, its.global_compression_ratio)
    return True


def test_groups_agree() -> None:
    """Every pair of weights and inputs, each format, outputs like inputs."""
    verdicts = set()
    for (weights, inputs), format_ in itertools.product(itertools.product(SIDES, SIDES), FORMATS):
        group = {"targets": ["Linear"], "weights": SIDES[weights], "input_activations": SIDES[inputs]}
        verdicts.add(agree(base(config_groups={"group_0": {**group, "format": format_}})))
    for outputs in SIDES.values():
        verdicts.add(agree(base(config_groups={"group_0": {"targets": ["Linear"], "output_activations": outputs}})))
    assert verdicts == {True, False}


@pytest.mark.parametrize("key", TOP)
def test_top_level_agrees(key: str) -> None:
    assert {agree(base(**{key: value})) for value in TOP[key]} == {True, False}
    if key != "config_groups":
        raw = base()
        raw.pop(key, None)
        assert agree(raw)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_agree(name: str) -> None:
    raw = base(config_groups={name: ["Linear"]})
    if name not in quantization.quant_scheme.PRESET_SCHEMES:
        pytest.skip(f"the installed compressed-tensors has no preset {name}")
    assert agree(raw)


def group(**changes: Any) -> dict[str, Any]:
    return base(config_groups={"group_0": {"targets": ["Linear"], "weights": INT4, **changes}})


# name, config, do we read it, do they
DEVIATIONS: list[tuple[str, dict[str, Any], bool, bool]] = [
    ("unknown key in args", group(weights={**INT4, "rotation": 1}), True, False),
    ("unknown key in a group", group(ignore=["lm_head"]), True, False),
    ("unknown format of a group", group(format="nf4-packed"), True, False),
    ("format of a group in another case", group(format="PACK_QUANTIZED"), True, False),
    ("unknown status", base(quantization_status="applied"), True, False),
    ("null status", base(quantization_status=None), True, False),
    ("null format", base(format=None), True, False),
    ("null config_groups", base(config_groups=None), True, False),
    (
        "input strategy inferred from local scales",
        group(input_activations={"group_size": 16, "dynamic": "local"}),
        True,
        False,
    ),
    ("sparse weights", base(sparsity_config={"format": "sparse-24-bitmask"}), False, True),
    ("sparse top-level format", base(format="marlin-24"), False, True),
    ("sparse format of a group", group(format="sparse-bitmask"), False, True),
    ("foreign method", base(quant_method="gptq"), False, True),
    ("a version that is no string", base(version=3), False, True),
    ("transforms that are no object", base(transform_config=[1]), False, True),
]


@pytest.mark.parametrize(
    ("raw", "read", "they_read"), [row[1:] for row in DEVIATIONS], ids=[row[0] for row in DEVIATIONS]
)
def test_deviations(raw: dict[str, Any], read: bool, they_read: bool) -> None:
    assert ((ours(raw) is not None), (theirs(raw) is not None)) == (read, they_read)
