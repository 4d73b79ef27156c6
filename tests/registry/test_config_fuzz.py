"""Whatever a config holds, reading it gives a config or a ``ConfigError`` of one printable line."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quantdispatch.registry.config import QuantConfig, parse_config
from quantdispatch.registry.errors import ConfigError

SEED: dict[str, Any] = {
    "model_type": "llama",
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    **{"num_bits": 4, "type": "int", "symmetric": False, "group_size": 64, "strategy": "group"},
                    **{"dynamic": False, "actorder": None, "block_structure": None, "scale_dtype": None},
                    **{"zp_dtype": "torch.int8", "observer": "minmax", "observer_kwargs": {}},
                },
                "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
                "output_activations": None,
                "format": "pack-quantized",
            },
            "FP8_BLOCK": ["re:.*mlp.*"],
        },
        "ignore": ["lm_head"],
        "kv_cache_scheme": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor"},
        "quantization_status": "compressed",
        "global_compression_ratio": 1.5,
        "sparsity_config": {},
        "transform_config": {"config_groups": {}},
        "version": "0.18.0",
    },
}

# Lone surrogates, huge numbers and foreign objects reach us from Python, and the first from JSON too.
TEXT = st.text(max_size=6) | st.sampled_from(["\ud800", "a\nb", "\0", "re:", "mixed-precision", "W4A16", "torch.int8"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | TEXT
    | st.sampled_from([10**400, -(2**63), b"x", object()])
)
VALUES = st.recursive(
    SCALARS,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(TEXT | st.integers(), children, max_size=3),
    max_leaves=6,
)


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    here = [prefix] if prefix else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return here + [path for key, item in items for path in paths(item, (*prefix, key))]


ALL_PATHS = paths(SEED)


def read(raw: Any) -> QuantConfig | None:
    """The config, or ``None`` when it is refused as it should be."""
    try:
        config = parse_config(raw)
    except ConfigError as error:
        line = str(error)
        assert line and "\n" not in line and line.encode("utf-8")
        assert isinstance(error.to_json()["message"], str)
        return None
    for problem in config.problems:
        assert str(problem).encode("utf-8")
    for group in config.groups:
        assert all(args.describe().encode("utf-8") for _, args in group.sides)
        hash(group)
    return config


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(VALUES)
def test_any_value(raw: Any) -> None:
    read(raw)
    read({"quantization_config": raw})
    read({"config_groups": raw})
    read({"config_groups": {"group_0": raw}})
    read({"config_groups": {"group_0": {"targets": ["Linear"], "weights": raw}}})


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(ALL_PATHS), VALUES), min_size=1, max_size=2), st.booleans())
def test_mutated_config(changes: list[tuple[tuple[Any, ...], Any]], remove: bool) -> None:
    raw = copy.deepcopy(SEED)
    for path, value in changes:
        parent: Any = raw
        for key in path[:-1]:
            if not isinstance(parent, dict) or key not in parent:
                break  # an earlier change removed this place
            parent = parent[key]
        else:
            if isinstance(parent, dict):
                parent.pop(path[-1], None)
                if not remove:
                    parent[path[-1]] = value
    read(raw)


def test_the_seed_is_valid() -> None:
    config = read(SEED)
    assert config is not None and len(config.groups) == 2 and config.problems == ()


@pytest.mark.parametrize("path", ALL_PATHS, ids=lambda path: ".".join(map(str, path)))
def test_an_object_of_no_use_in_every_place(path: tuple[Any, ...]) -> None:
    """``{"x": {}}`` is right almost nowhere; the error or the problem lies at or below the place."""
    raw = copy.deepcopy(SEED)
    parent: Any = raw
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = {"x": {}}
    try:
        config = parse_config(raw)
    except ConfigError as error:
        assert error.field is not None and error.field.startswith(".".join(map(str, path)))
    else:
        where = ".".join(map(str, path))
        harmless = {
            "model_type",
            "quantization_config.transform_config",
            "quantization_config.transform_config.config_groups",
            "quantization_config.config_groups.group_0.weights.observer_kwargs",
        }
        assert where in harmless or any(problem.path.startswith(where) for problem in config.problems)


def nested(depth: int) -> Any:
    value: Any = 4
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [10, 100, 3000])
def test_deep_values(depth: int) -> None:
    raw = copy.deepcopy(SEED)
    raw["quantization_config"]["config_groups"]["group_0"]["weights"]["num_bits"] = nested(depth)
    with pytest.raises(ConfigError):
        parse_config(raw)
    # Elsewhere in config.json depth is not our business.
    assert read({**SEED, "other": nested(depth)}) == read(SEED)
