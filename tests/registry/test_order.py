"""Nothing depends on an order: of rules, kernels and plugins, of keys and groups in a config, of modules.

But where what is written decides by its order: a target that stands in two groups belongs to the last, and engines go
by the order of the groups, which is reported.
"""

from __future__ import annotations

import json
import random
import types
from pathlib import Path
from typing import Any

import architectures
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quantdispatch import Absent, Args, QuantDispatchError, Rule, When, hookimpl, plan
from quantdispatch.registry.plugins import Source
from quantdispatch.registry.registry import Registry, build
from quantdispatch.registry.table import RuleTable
from quantdispatch.testing import Row, load_table, using_registry

DATA = Path(__file__).parents[1] / "data"
REAL = [path.stem for path in sorted((DATA / "configs" / "shared").glob("*.json"))]
SEEDS = st.integers(0, 2**32)
FEW = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
REGISTRY = build()
#: what is said of the order of the groups
OF_ORDER = {"engine-order", "target-overlap"}


def read(name: str) -> Any:
    return json.loads((DATA / "configs" / "shared" / f"{name}.json").read_text())


def shuffled(raw: Any, rng: random.Random) -> Any:
    """The same JSON with the keys of every object in another order."""
    if isinstance(raw, dict):
        return {key: shuffled(raw[key], rng) for key in rng.sample(list(raw), len(raw))}
    return [shuffled(item, rng) for item in raw] if isinstance(raw, list) else raw


def outcome(raw: Any, registry: Registry = REGISTRY, **options: Any) -> Any:
    """All that a plan says, its problems without the order in which it says them; or the error."""
    with using_registry(registry):
        try:
            shown = plan(raw, strict=False, **options).to_json()
        except QuantDispatchError as error:
            return type(error), error.required  # of several things wrong, the first in the file is named
    problems = sorted((p["code"], p["where"], p["message"]) for p in shown["problems"] if p["code"] not in OF_ORDER)
    return shown["layers"], problems


def models(name: str) -> list[Any]:
    """No modules, and those of a model that the config may be of."""
    made = {"Kimi-K2": architectures.deepseek, "DeepSeek": architectures.deepseek, "Qwen3.": architectures.qwen3_5}
    make = next((make for part, make in made.items() if part in name), architectures.llama)
    return [None, make()]


@pytest.mark.parametrize("name", REAL)
@FEW
@given(SEEDS)
def test_keys_and_groups_of_a_config(name: str, seed: int) -> None:
    raw = read(name)
    other = shuffled(raw, random.Random(seed))
    for modules in models(name):
        assert outcome(raw, modules=modules) == outcome(other, modules=modules)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_a_target_in_two_groups_belongs_to_the_last(order: tuple[str, str]) -> None:
    groups = {"a": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 32}},
              "b": {"targets": ["Linear"], "weights": {"num_bits": 8, "strategy": "channel"}}}  # fmt: skip
    block = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    result = plan({**block, "config_groups": {name: groups[name] for name in order}})
    assert result.layers["Linear"].group == order[-1]
    assert "duplicate-target" in {p.code for p in result.problems}


@pytest.mark.parametrize("name", ["unsloth--Qwen3.6-27B-NVFP4", "moonshotai--Kimi-K2.5", "poolside--Laguna-S-2.1-FP8"])
@FEW
@given(SEEDS)
def test_modules(name: str, seed: int) -> None:
    (_, modules), rng = models(name), random.Random(seed)
    other = {key: modules[key] for key in rng.sample(list(modules), len(modules))}
    first, second = outcome(read(name), modules=modules), outcome(read(name), modules=other)
    assert first == second


# ------------------------------------------------------------------------------------------------------ rules, kernels


def asked_by(row: Row) -> dict[str, Any]:
    sides = {"weights": "weights", "input_activations": "inputs", "output_activations": "outputs"}
    args = {key: row.asks[side] for key, side in sides.items() if side in row.asks}
    block = {"quant_method": "compressed-tensors", "config_groups": {"row": {"targets": ["Linear"], **args}}}
    return {**block, **{key: row.asks[key] for key in ("format",) if key in row.asks}}


NEAR = [asked_by(row) for row in load_table(DATA / "near_misses.toml") if "kind" not in row.asks]
CONFIGS = [read(name) for name in REAL] + NEAR


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SEEDS)
def test_rules_and_kernels(seed: int) -> None:
    rng = random.Random(seed)
    rules, kernels = list(REGISTRY.rules.rules), list(REGISTRY.kernels)
    rng.shuffle(rules)
    rng.shuffle(kernels)
    other = Registry(RuleTable(rules), kernels, ranks=REGISTRY.ranks)
    for raw in CONFIGS:
        assert outcome(raw) == outcome(raw, other)


# ------------------------------------------------------------------------------------------------------------- plugins

INT9 = Args(type="int", num_bits=9, strategy="channel", symmetric=True, dynamic=False)
SCHEME = "quantdispatch.schemes.wna16_int:WNA16Int"


def rule(name: str, weights: Args = INT9, **more: Any) -> Rule:
    return Rule(name, When(kind="linear", format="pack-quantized", weights=weights, inputs=Absent, outputs=Absent),
                SCHEME, **more)  # fmt: skip


def source(distribution: str, *rules: Rule, rewrites: str | None = None) -> Source:
    module = types.ModuleType(distribution)

    def quantdispatch_rules() -> list[Rule]:
        return list(rules)

    def quantdispatch_config(config: Any) -> Any:
        if config.get("quant_method") != "foreign":
            return None
        return {**config, "quant_method": "compressed-tensors", "format": rewrites}

    module.quantdispatch_rules = hookimpl(quantdispatch_rules)  # type: ignore[attr-defined]
    if rewrites is not None:
        module.quantdispatch_config = hookimpl(quantdispatch_config)  # type: ignore[attr-defined]
    return Source(distribution, distribution, "1.0", lambda: module)


W4 = Args(type="int", num_bits=4, strategy="group", group_size=128, symmetric=True, dynamic=False)
PLUGINS = {
    "apart": [source("a", rule("nine")), source("b", rule("ten", Args(type="int", num_bits=10)))],
    "overlap": [source("a", rule("one")), source("b", rule("two")), source("c", rule("ten", Args(num_bits=10)))],
    "three-overlap": [source(name, rule(name)) for name in ("x", "y", "z")],
    "clash": [source("a", rule("same")), source("b", rule("same", Args(type="int", num_bits=11)))],
    "with-a-built-in-rule": [source("a", rule("mine", W4)), source("b", rule("other", W4, overrides=("wNa16_int",)))],
    "override": [source("a", rule("low")), source("b", rule("high", overrides=("low",)))],
    "cycle": [source("a", rule("p", overrides=("q",))), source("b", rule("q", overrides=("p",))),
              source("c", rule("r"))],
    "rewriting": [source("a", rewrites="pack-quantized"), source("b", rewrites="int-quantized")],
}  # fmt: skip
ASKED = [
    {"quant_method": method, "format": "pack-quantized",
     "config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": bits, **scope}}}}
    for method in ("compressed-tensors", "foreign")
    for bits in (4, 9, 10, 11)
    for scope in ({"strategy": "channel"}, {"group_size": 128})
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", PLUGINS)
def test_plugins(name: str) -> None:
    def all_of(sources: list[Source]) -> Any:
        registry = build(sources)
        states = sorted((p.name, p.state, p.error) for p in registry.plugins)
        told = sorted((p.code, p.message, p.distributions) for p in registry.problems)
        return states, told, [r.name for r in registry.rules.rules], [outcome(raw, registry) for raw in ASKED]

    sources = PLUGINS[name]
    expected = all_of(sources)
    rng = random.Random(name)
    orders = [sources[::-1], *(rng.sample(sources, len(sources)) for _ in range(2))]
    assert all(all_of(order) == expected for order in orders)
