"""The engines' cases against recorded decisions, and what we say of each recorded decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from engine_cases import FILES, HERE, KINDS, capability, devices, engine, read, rows, view_of

from quantdispatch.registry.args import QuantArgs
from quantdispatch.registry.config import parse_config
from quantdispatch.registry.errors import ConfigError
from quantdispatch.registry.facts import LayerFacts
from quantdispatch.registry.peers.case import Chain, EngineCase
from quantdispatch.registry.peers.compare import compare, decide, engines, judge, sentences, wrong
from quantdispatch.registry.peers.facts import Sight, View, sight_of
from quantdispatch.registry.peers.refused import explain_refused
from quantdispatch.registry.registry import build

REGISTRY = build()
FILES_OF_CASES = [(name, kind) for name in FILES for kind in KINDS]


def outcomes(name: str, row: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, str], dict[str, Any]]]:
    """(device, architecture, settings, recorded outcome), one a device."""
    for key, outcome in row["outcome"].items():
        for device, arch, settings in devices(key, engine(name).settings[0]):
            yield device, arch, settings, outcome


def said(outcome: dict[str, Any]) -> str:
    return str(outcome.get("scheme") or outcome["error"])


@pytest.mark.parametrize(("name", "kind"), FILES_OF_CASES)
def test_every_recorded_outcome_is_predicted(name: str, kind: str) -> None:
    """The class where one runs, the type of the error where none does."""
    mistakes = Counter[tuple[str, str, str]]()
    seen = 0
    for row in rows(name, kind):
        view = view_of(row["quantization_config"], kind)
        for device, arch, settings, outcome in outcomes(name, row):
            case = decide(engine(name), view, device, capability(device, arch), settings)
            assert case is not None
            seen += 1
            if said(outcome) != (case.runs or case.error):
                mistakes[said(outcome), str(case.runs or case.error), case.name] += 1
    assert not mistakes
    assert seen > 1000


@pytest.mark.parametrize(("name", "kind"), FILES_OF_CASES)
def test_every_recorded_class_is_accounted_for(name: str, kind: str) -> None:
    """The scheme names the class as the same, or ``differs`` or our error says what the engine computes instead."""
    open_, seen = Counter[tuple[str, str]](), 0
    for row in rows(name, kind):
        if not any("scheme" in outcome for outcome in row["outcome"].values()):
            continue
        view = view_of(row["quantization_config"], kind)
        rule = None if refused(row["quantization_config"]) else REGISTRY.rules.winner(view.layer)
        scheme = None if rule is None else REGISTRY.scheme_class(rule).name
        for device, arch, _, outcome in outcomes(name, row):
            if "scheme" in outcome:
                seen += 1
                complaint = unaccounted(name, view, scheme, device, arch, outcome["scheme"])
                if complaint:
                    open_[complaint, outcome["scheme"]] += 1
    assert not open_
    assert seen > 100


def refused(raw: dict[str, Any]) -> bool:
    try:
        parse_config({"quant_method": "compressed-tensors", **raw})
    except ConfigError:
        return True
    return False


def unaccounted(name: str, view: View, scheme: str | None, device: str, arch: str, runs: str) -> str:
    """What is wrong with what we say of a class that runs, or nothing."""
    if scheme is None:
        said_of_it = sentences(view, device, arch).get(name, "")
        if runs not in said_of_it:
            return f"the error does not name it: {said_of_it}"
        # No rule accepts these experts, though vLLM computes them as the args say: a plugin brings one.
        right = view.layer.kind == "moe" and view.layer.weights is not None and not view.layer.weights.symmetric
        return "" if "which" in said_of_it or right else f"the error says nothing wrong: {said_of_it}"
    equivalents, differs = compare(view, scheme, device, arch)
    if name in equivalents and name in differs:
        return "stands in both"
    if name in equivalents:
        return "" if runs in equivalents[name] else f"not among {equivalents[name]}"
    if name not in differs:
        return "stands in neither"
    if runs not in differs[name]:
        return f"not named: {differs[name]}"
    return "" if wrongs(name, view, device, arch) else f"no fault, but another contract: {differs[name]}"


def wrongs(name: str, view: View, device: str, arch: str) -> tuple[str, ...]:
    opinion = judge(engine(name), view, device, arch)
    return () if opinion is None else opinion.wrong


@pytest.mark.parametrize(("name", "kind"), FILES_OF_CASES)
def test_each_case_is_needed(name: str, kind: str) -> None:
    """Without it recorded decisions come out otherwise, or are judged so. Those that no record reaches are named:
    they are of configs that the records have none of."""
    chain = engine(name).chains[kind]
    reached: dict[str, list[tuple[dict[str, Any], str]]] = {}
    for row in rows(name, kind, HERE):
        view = view_of(row["quantization_config"], kind)
        for device, arch, settings, outcome in outcomes(name, row):
            case = decide(engine(name), view, device, capability(device, arch), settings)
            assert case is not None
            reached.setdefault(case.name, []).append(
                (view.on(device, capability(device, arch), settings), said(outcome))
            )
    unreached, idle = set(), []
    for case in chain:
        rest = Chain(other for other in chain if other is not case)
        found = reached.get(case.name, [])
        if not found:
            unreached.add(case.name)
            continue
        if not any(otherwise(name, case, rest.first(facts), facts, want) for facts, want in found):
            idle.append(case.name)
    assert not idle
    # no recorded device is older than sm75
    unreached = {case for case in unreached if not case.endswith(", below sm75")}
    assert unreached == {case for case in UNRECORDED if any(c.name == case for c in chain)}
    assert len({case.name for case in chain}) == len(chain)


def otherwise(name: str, case: EngineCase, other: EngineCase | None, facts: dict[str, Any], want: str) -> bool:
    if other is None or (other.runs or other.error) != want:
        return True
    return (case.same_as, wrong(engine(name), case, facts)) != (other.same_as, wrong(engine(name), other, facts))


UNRECORDED = {
    *("a group spelled as a preset", "sparsity_config with targets", "unknown key in the args"),
    *("a group without weights", "a float of other than 4 or 8 bits", "fp8 or int8 beside 2:4 sparsity"),
    *("packed int4, 8-bit inputs, no group of Linear", "packed integers of other than 2 to 8 bits, int4 inputs"),
}


def test_a_case_removed_or_turned_is_a_mistake_of_prediction() -> None:
    """The test of predictions can fail: with two neighbours swapped, and with one predicate made exact."""
    name, kind = "vllm", "linear"
    chain = list(engine(name).chains[kind])
    numbers = {case.name: number for number, case in enumerate(chain)}
    first, second = numbers["fp8 weights and inputs, below sm89"], numbers["fp8 weights and inputs"]
    chain[first], chain[second] = chain[second], chain[first]
    swapped = Chain(chain)
    mistakes = 0
    for row in rows(name, kind, HERE):
        view = view_of(row["quantization_config"], kind)
        for device, arch, settings, outcome in outcomes(name, row):
            case = swapped.first(view.on(device, capability(device, arch), settings))
            mistakes += case is None or (case.runs or case.error) != said(outcome)
    assert mistakes


def test_a_kernel_that_leaves_inputs_unquantized_is_recorded() -> None:
    """vLLM's WNA8Int and WNA4Int quantize inputs on Humming only: what we say agrees with the recorded kernels."""
    told = Counter[tuple[bool, bool]]()
    for row in rows("vllm", "linear"):
        view = view_of(row["quantization_config"], "linear")
        for device, arch, _, outcome in outcomes("vllm", row):
            kernel = outcome.get("kernel")
            if outcome.get("scheme") in ("CompressedTensorsWNA8Int", "CompressedTensorsWNA4Int") and isinstance(
                kernel, str
            ):
                faults = wrongs("vllm", view, device, arch)
                told[kernel == "HummingLinearKernel", any("weight-only" in fault for fault in faults)] += 1
    assert set(told) == {(True, False), (False, True)}


def heads_and_embeddings() -> Iterator[tuple[str, dict[str, Any]]]:
    for row in read(HERE / "vllm-0.32.0-targets.jsonl.gz"):
        for note, kind in (("ParallelLMHead", "lm_head"), ("VocabParallelEmbedding", "embedding")):
            if row["note"] == f"get_quant_method {note}":
                yield kind, row


def test_heads_and_embeddings_are_predicted() -> None:
    seen = 0
    for kind, row in heads_and_embeddings():
        raw = row["config"]
        target = next(iter(raw["config_groups"].values()))["targets"][0]
        case = decide(engine("vllm"), view_of(raw, kind, target, "lm_head"), "cpu", capability("cpu", ""), {})
        result = row["result"]
        assert case is not None
        assert (case.runs or case.error) == (result.get("error") or result.get("scheme") or result.get("method"))
        seen += 1
    assert seen == 249


def test_caches_are_predicted() -> None:
    seen = 0
    for row in read(HERE / "vllm-0.32.0-targets.jsonl.gz"):
        raw = row["config"].get("kv_cache_scheme")
        if row["note"] in ("kv_cache_scheme", "kv no strategy") and raw is not None:
            result = row["result"]
            got = ran("vllm", raw)
            # the engine reads the scheme as a dict, so that it has its own error for args that nobody would accept
            assert got in ("CompressedTensorsKVCacheMethod" if result.get("ok") else result["error"], "illegal args")
            seen += got != "illegal args"
    for row in read(HERE / "sglang-0.5.23-targets.jsonl.gz"):
        raw = row["quantization_config"].get("kv_cache_scheme")
        if raw is not None:
            assert ran("sglang", raw) == (row["result"]["method"] or "RadixAttention")
            seen += 1
    assert seen > 20


def ran(name: str, raw: dict[str, Any]) -> str:
    try:
        args = QuantArgs(**raw)
    except ValueError:
        return "illegal args"
    view = View(LayerFacts("kv_cache", None, None, args), Sight(strategy_given="strategy" in raw))
    case = decide(engine(name), view, "cuda", 90, engine(name).settings[0])
    assert case is not None
    return str(case.runs or case.error)


def layer(kind: str, form: str, weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> View:
    facts = LayerFacts(kind, form, QuantArgs(**weights), None if inputs is None else QuantArgs(**inputs))
    return View(facts, Sight.of(facts))


INT4, FP8 = {"num_bits": 4, "group_size": 128}, {"num_bits": 8, "type": "float", "strategy": "channel"}
TOKEN = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
INT8_TOKEN = {"num_bits": 8, "strategy": "token", "dynamic": True}
INT8 = {"num_bits": 8, "strategy": "channel"}
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
NV_INPUTS = {**NVFP4, "dynamic": "local"}


@pytest.mark.parametrize(
    ("view", "scheme", "device", "arch", "same", "other"),
    [
        (layer("linear", "pack-quantized", INT4), "wNa16_int", "cpu", "x86_64",
         {"vllm": ("CompressedTensorsWNA16",), "sglang": ("CompressedTensorsWNA16",)}, {}),
        (layer("linear", "float-quantized", FP8, TOKEN), "w8a8_fp8", "cuda", "sm90",
         {"vllm": ("CompressedTensorsW8A8Fp8",), "sglang": ("CompressedTensorsW8A8Fp8",)}, {}),
        (layer("linear", "float-quantized", FP8, TOKEN), "w8a8_fp8", "cuda", "sm80", {},
         {"vllm": "inputs unquantized: below sm89", "sglang": "inputs unquantized: below sm89"}),
        (layer("linear", "int-quantized", INT8, INT8_TOKEN), "wNa8_int", "cuda", "sm90",
         {"vllm": ("CompressedTensorsW8A8Int8",), "sglang": ("CompressedTensorsW8A8Int8",)}, {}),
        (layer("linear", "int-quantized", INT8, {"num_bits": 8, "strategy": "tensor"}), "wNa8_int", "cuda", "sm90",
         {"vllm": ("CompressedTensorsW8A8Int8",)}, {"sglang": "ignores the static scale and zero point"}),
        (layer("linear", "pack-quantized", INT4, INT8_TOKEN), "wNa8_int", "cuda", "sm80", {},
         {"vllm": "runs CompressedTensorsWNA8Int, which leaves the inputs unquantized"}),
        (layer("moe", "pack-quantized", INT4), "wNa16_int", "cuda", "sm100",
         {"vllm": ("CompressedTensorsWNA16MoEMethod",),
          "sglang": ("CompressedTensorsWNA16TritonMoE", "CompressedTensorsWNA16MoE")}, {}),
        (layer("linear", "nvfp4-pack-quantized", NVFP4), "w4a16_nvfp4", "cuda", "sm90",
         {"vllm": ("CompressedTensorsW4A4Fp4",), "sglang": ("CompressedTensorsW4A16Fp4",)}, {}),
        (layer("linear", "nvfp4-pack-quantized", NVFP4, NV_INPUTS), "w4a4_nvfp4", "cuda", "sm100",
         {"vllm": ("CompressedTensorsW4A4Fp4",)}, {"sglang": "but with fp4_gemm=marlin CompressedTensorsW4A16Fp4"}),
        (layer("linear", "pack-quantized", INT4, TOKEN), "w4a8_fp8", "cuda", "sm100",
         {"vllm": ("CompressedTensorsW4A8Fp8",)}, {}),
        (layer("embedding", "pack-quantized", INT4), "wNa16_int", "cuda", "sm90",
         {"vllm": ("CompressedTensorsEmbeddingWNA16Int",)}, {}),
        (layer("lm_head", "pack-quantized", INT4), "wNa16_int", "cuda", "sm90", {},
         {"vllm": "takes no class for the head", "sglang": "takes no class for the head"}),
        (layer("linear", "pack-quantized", INT4), "a plugin's own", "cpu", "x86_64", {}, {}),
    ],
)  # fmt: skip
def test_notes(view: View, scheme: str, device: str, arch: str, same: dict[str, Any], other: dict[str, str]) -> None:
    equivalents, differs = compare(view, scheme, device, arch)
    assert equivalents == same
    assert differs.keys() == other.keys()
    assert all(other[name] in differs[name] for name in other)


def test_a_setting_that_goes_wrong_is_told_with_what_runs_by_default() -> None:
    view = layer("linear", "nvfp4-pack-quantized", NVFP4, NV_INPUTS)
    opinion = judge(engine("sglang"), view, "cuda", "sm100")
    assert opinion is not None
    assert opinion.reason.startswith(
        "runs CompressedTensorsW4A4Fp4, but with fp4_gemm=marlin CompressedTensorsW4A16Fp4, "
    )


def test_an_engine_that_a_device_is_too_old_for_is_judged_by_a_newer_one() -> None:
    opinion = judge(engine("sglang"), layer("linear", "pack-quantized", INT4), "cuda", "sm75")
    assert opinion is not None and opinion.where == "sm100"
    assert judge(engine("sglang"), layer("embedding", "pack-quantized", INT4), "cuda", "sm90") is None


def test_where_the_group_stands_counts() -> None:
    """SGLang asks for the top-level format, and for the group of Linear, where it should ask for the layer's own."""
    raw = {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "config_groups": {
            "attention": {
                "targets": ["Linear"],
                "format": "float-quantized",
                "weights": FP8,
                "input_activations": TOKEN,
            },
            "experts": {"targets": ["re:.*experts.*"], "format": "pack-quantized", "weights": INT4},
        },
    }
    config = parse_config(raw)
    experts = config.groups[1]
    sight = sight_of(config, experts, "re:.*experts.*", name="model.layers.0.mlp.experts.0.up_proj")
    assert (sight.format, sight.top_format, sight.target, sight.linear_entry) == (
        "pack-quantized", "mixed-precision", "regex", "other",
    )  # fmt: skip
    view = View(LayerFacts("moe", "pack-quantized", experts.weights), sight)
    assert judge(engine("sglang"), view, "cuda", "sm90") is None
    assert judge(engine("vllm"), view, "cuda", "sm90") is not None


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"weights": {**INT4, "surprise": 1}}, set()),
        ({"weights": INT4, "format": "pack-quantized"}, {"vllm", "sglang"}),
        ({"weights": {"num_bits": 6, "type": "float", "group_size": 32}}, set()),
    ],
)
def test_what_engines_refuse_to_read(changes: dict[str, Any], names: set[str]) -> None:
    raw = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"g": {"targets": ["Linear"], **changes}},
    }
    config = parse_config(raw)
    group = config.groups[0]
    facts = LayerFacts("linear", config.effective_format(group), group.weights)
    view = View(facts, sight_of(config, group, "Linear"))
    assert {e.name for e in engines() if judge(e, view, "cuda", "sm90")} == names


def test_a_config_that_we_refuse_says_what_engines_make_of_it() -> None:
    raw = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {
            "group.0": {
                "targets": ["Linear"],
                "weights": FP8,
                "input_activations": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [1, 128]},
            },
            "other": {"targets": ["re:x"], "weights": NVFP4},
        },
    }
    with pytest.raises(ConfigError) as caught:
        parse_config(raw)
    explain_refused(caught.value, raw)
    assert set(caught.value.engines) == {"vllm", "sglang"}
    assert "runs CompressedTensorsW8A16Fp8, which leaves the inputs unquantized" in caught.value.engines["sglang"]
    assert "W4A16Fp4" not in str(caught.value)  # the error is about the other group
    assert caught.value.engines["vllm"] in str(caught.value)


@pytest.mark.parametrize(
    "raw", [{}, {"config_groups": {}}, {"quant_method": "compressed-tensors", "config_groups": []}]
)
def test_an_error_about_something_else_says_nothing_of_engines(raw: dict[str, Any]) -> None:
    error = ConfigError("broken", field="config_groups.g.targets")
    explain_refused(error, raw)
    assert not error.engines
