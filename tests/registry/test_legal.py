"""The legal universe against the validation of the installed compressed-tensors, both ways."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from packaging.version import Version

from quantdispatch.registry import plan as plan_module
from quantdispatch.registry.analysis import Fuel, config_of, layer_in
from quantdispatch.registry.analysis.columns import DERIVED, columns
from quantdispatch.registry.analysis.judge import Judge
from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.domains import at_least, domain, not_in
from quantdispatch.registry.facts import ARGS_FIELDS, LAYER_FIELDS, SIDES, LayerFacts
from quantdispatch.registry.legal import LEGAL
from quantdispatch.registry.plan import plan
from quantdispatch.registry.predicates import Box, When
from quantdispatch.registry.registry import Registry, build
from quantdispatch.registry.rules import builtin_rules
from quantdispatch.registry.values import ABSENT, PRESENT

KEYS = {"weights": "weights", "inputs": "input_activations", "outputs": "output_activations"}
VALUES = columns({}, LEGAL)


def scheme_class() -> Any:
    reason = "compares with the validation of an installed compressed-tensors"
    return pytest.importorskip("compressed_tensors.quantization", reason=reason).QuantizationScheme


def newest() -> bool:
    """Does the installed release validate as the newest one does? Older ones are stricter here, looser there."""
    import compressed_tensors

    return Version(compressed_tensors.__version__).release >= (0, 20)


def sample(box: Box, rng: random.Random) -> LayerFacts:
    """A layer in a box of the universe."""
    chosen: dict[str, Any] = {}
    for name, wanted in box.fields:
        if name in SIDES:
            chosen[name] = ABSENT if ABSENT in wanted else PRESENT
        elif chosen.get(name.partition(".")[0]) is not ABSENT:
            chosen[name] = rng.choice([v for v in VALUES[name] if v in wanted])
    sides = [
        QuantArgs(**{n: chosen[f"{side}.{n}"] for n in ARGS_FIELDS}) if chosen[side] is PRESENT else None
        for side in SIDES
    ]
    return LayerFacts(chosen["kind"], chosen["format"], *sides)


def accepted(facts: LayerFacts) -> bool:
    """By compressed-tensors, as one group of a config."""
    sides = {KEYS[side]: args.to_json() for side in SIDES if (args := getattr(facts, side)) is not None}
    return valid({**sides, "targets": ["Linear"]})


def valid(raw: Mapping[str, Any]) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            scheme_class()(**raw)
        except Exception:  # ValueError, NotImplementedError, TypeError: whatever it is, the config does not load
            return False
    return True


BOXES = list(LEGAL.boxes())


def samples(seed: str, part: float = 1.0) -> Iterator[LayerFacts]:
    """A layer of each box, or of a random part of the boxes."""
    rng = random.Random(seed)
    for box in rng.sample(BOXES, int(part * len(BOXES))):
        yield sample(box, rng)


def test_every_sample_of_every_box_is_legal() -> None:
    scheme_class()
    if not newest():
        pytest.skip("the universe is that of compressed-tensors 0.20")
    ordered = 0
    for facts in samples("boxes"):
        assert facts in LEGAL
        if facts.weights is not None and facts.weights.actorder == "group":
            ordered += 1  # of the releases before; read since, and written no more
            assert facts.weights.strategy in ("group", "tensor_group")
            assert not accepted(facts)
        else:
            assert accepted(facts), facts
    assert ordered


def test_boxes_are_disjoint() -> None:
    for facts in samples("disjoint", 0.15):
        assert sum(box.test(facts.flat).status == "yes" for box in BOXES) == 1


RAW: dict[str, tuple[Any, ...]] = {
    "num_bits": (1, 2, 3, 4, 5, 6, 7, 8, 16, 0, 33),
    "type": ("int", "float"),
    "symmetric": (True, False),
    "strategy": (None, "tensor", "channel", "group", "block", "token", "tensor_group", "attn_head"),
    "group_size": (None, None, -1, 0, 1, 16, 100, 128),
    "block_structure": (None, None, [128, 128], [1, 7]),
    "dynamic": (False, True, "local"),
    "actorder": (None, None, "weight", "static"),
    "scale_dtype": (None, "torch.uint8", "torch.bfloat16", "torch.int32"),
    "zp_dtype": (None, "torch.int8", "torch.float8_e4m3fn", "torch.bfloat16"),
}


def random_group(rng: random.Random) -> dict[str, Any]:
    def args() -> dict[str, Any] | None:
        if rng.random() < 0.25:
            return None
        raw = {name: rng.choice(values) for name, values in RAW.items()}
        if raw["dynamic"] == "local":  # without a strategy it is read here, and refused there
            raw["strategy"] = raw["strategy"] or "tensor_group"
        return {name: value for name, value in raw.items() if value is not None}

    return {key: raw for key in KEYS.values() if (raw := args()) is not None}


def test_what_compressed_tensors_accepts_lies_in_the_universe_and_nothing_else() -> None:
    scheme_class()
    if not newest():
        pytest.skip("the universe is that of compressed-tensors 0.20")
    rng = random.Random("groups")
    counts = {True: 0, False: 0}
    while min(counts.values()) < 200:
        group = random_group(rng)
        legal = valid({**group, "targets": ["Linear"]})
        counts[legal] += 1
        try:
            sides = {side: QuantArgs(**group[key]) for side, key in KEYS.items() if key in group}
        except ValueError:
            assert not legal, group
            continue
        facts = LayerFacts("linear", "pack-quantized", *(sides.get(side) for side in SIDES))
        assert (facts in LEGAL) is legal, group


@pytest.mark.parametrize(
    ("facts", "legal"),
    [
        (LayerFacts("linear", "dense", None), True),
        (LayerFacts("linear", "acme-format", QuantArgs(num_bits=4, group_size=128)), True),
        (LayerFacts("linear", "naive-quantized", QuantArgs(num_bits=8)), False),  # read as int-quantized
        (LayerFacts("linear", "naive-quantized", None, QuantArgs(num_bits=8)), True),
        (LayerFacts("linear", "mixed-precision", QuantArgs(num_bits=8)), False),
        (LayerFacts("linear", "sparse-24-bitmask", QuantArgs(num_bits=8)), False),
        (LayerFacts("linear", None, QuantArgs(num_bits=8)), False),
        (LayerFacts("attention", "dense", None, QuantArgs(num_bits=8)), True),
        (LayerFacts("attention", "dense", QuantArgs(num_bits=8)), False),
        (LayerFacts("kv_cache", None, None, QuantArgs(num_bits=8, strategy="attn_head")), True),
        (LayerFacts("kv_cache", None, None), False),
        (LayerFacts("conv", "dense", None), False),
    ],
)
def test_kinds_and_formats(facts: LayerFacts, legal: bool) -> None:
    assert (facts in LEGAL) is legal


def test_every_fact_of_layers_is_known_to_the_analysis() -> None:
    """A new derived fact needs an entry in ``DERIVED`` that says what it looks at."""
    assert frozenset(VALUES) | set(SIDES) | frozenset(DERIVED) == LAYER_FIELDS


@pytest.fixture
def built_in(monkeypatch: pytest.MonkeyPatch) -> Registry:
    registry = build()
    monkeypatch.setattr(plan_module, "get_registry", lambda: registry)
    return registry


def test_a_witness_can_be_pasted(built_in: Registry) -> None:
    """The config of any legal layer has that very layer."""
    for facts in samples("paste", 0.25):
        planned = plan(config_of(facts), strict=False).layers.values()
        if facts.kind == "kv_cache":
            found = [(x.kind, x.inputs) for x in planned]
            assert (facts.kind, facts.inputs) in found
        elif facts.weights is not None or facts.inputs is not None or facts.outputs is not None:
            (one,) = planned
            seen = LayerFacts(one.kind, one.format, one.weights, one.inputs, one.outputs)
            assert seen == facts


@pytest.mark.parametrize(
    ("fields", "exists"),
    [
        ({"weights.group_size": at_least(1000)}, True),
        ({"weights.block_structure": domain((3, 7))}, True),
        ({"weights.block_structure": domain("3x7")}, False),
        ({"weights.num_bits": domain(-5)}, True),
        ({"weights.scale_dtype": domain("float64")}, True),
        ({"weights.scale_dtype": domain("acme64")}, False),
        ({"weights.strategy": domain("channel"), "weights.group_size": at_least(1)}, False),
        ({"inputs.strategy": domain("channel")}, False),
        ({"inputs.actorder": not_in({None, ABSENT})}, False),
        ({"weights.actorder": domain("group"), "weights.strategy": domain("channel")}, False),
        ({"format": domain("acme-format"), "weights": domain(PRESENT)}, True),
        ({"format": domain("Acme_Format")}, False),
        ({"same_group": domain(True), "weights.group_size": at_least(77)}, True),
        ({"same_group": domain(True), "weights.group_size": domain(64), "inputs.group_size": not_in({64})}, False),
        ({"same_group": domain(False), "weights.group_size": at_least(2**31 - 2)}, True),
        (
            {"same_group": domain(ABSENT), "weights.strategy": domain("group"), "inputs.strategy": domain("group")},
            False,
        ),
    ],
)
def test_a_box_has_a_layer_exactly_if_a_legal_one_fits(fields: dict[str, Any], exists: bool) -> None:
    box = Box(tuple(sorted(fields.items())))
    facts = layer_in(box)
    assert (facts is not None) is exists
    if facts is not None:
        assert facts in LEGAL and box.test(facts.flat).status == "yes"


def test_each_box_of_the_built_in_rules_has_a_layer() -> None:
    rules = list(builtin_rules())
    judge = Judge(rules)
    for index, rule in enumerate(rules):
        spots = judge.spots(index, Fuel(10**6))
        for bit, box in enumerate(
            rule.predicate.boxes, (judge.matrix.of[index] & -judge.matrix.of[index]).bit_length()
        ):
            spot = next(s for s in spots if s.cell.mask >> (bit - 1) & 1)
            assert box.test(spot.cell.facts.flat).status == "yes"


def test_a_witness_of_everything_is_the_usual_layer() -> None:
    assert layer_in(When().boxes[0]) == LayerFacts("linear", "pack-quantized", QuantArgs(num_bits=4, group_size=128))
