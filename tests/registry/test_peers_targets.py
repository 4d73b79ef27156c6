"""Which group engines take for a layer, beside which we take: every recorded difference is one of the listed kinds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from engine_cases import HERE, read
from engine_matching import Place, sglang, sglang_experts, vllm

from quantdispatch.registry.peers.targets import TARGET_DIFFERENCES
from quantdispatch.registry.targets import TargetIndex

#: what an engine's class was to the writer
CLASSES = {
    **dict.fromkeys(("QKVParallelLinear", "MergedColumnParallelLinear", "RowParallelLinear"), "Linear"),
    **dict.fromkeys(("ColumnParallelLinear", "ReplicatedLinear", "ParallelLMHead", "Linear"), "Linear"),
    **dict.fromkeys(("RoutedExperts", "FusedMoE"), "Linear"),
    "VocabParallelEmbedding": "Embedding",
    "Conv2dLayer": "Conv2d",
}
LINEAR_CLASSES = {cls for cls, ours in CLASSES.items() if ours == "Linear"} - {
    "RoutedExperts",
    "FusedMoE",
    "ParallelLMHead",
}


@dataclass(frozen=True)
class Case:
    """A layer of an engine in a config, with what is recorded of it."""

    engine: str
    note: str
    config: dict[str, Any]
    name: str | None
    cls: str
    packed: dict[str, list[str]]
    result: dict[str, Any]

    @property
    def groups(self) -> dict[str, list[str]]:
        return {name: group["targets"] for name, group in self.config["config_groups"].items()}

    @property
    def kept(self) -> dict[str, list[str]]:
        """Without groups that vLLM drops."""
        dropped = self.engine == "vllm"
        return {g: t for g, t in self.groups.items() if not (dropped and len(t) == 1 and t[0].endswith("Attention"))}

    @property
    def targets(self) -> list[str]:
        return list(dict.fromkeys(target for targets in self.kept.values() for target in targets))

    @property
    def ignore(self) -> list[str]:
        return list(self.config.get("ignore") or [])


def recorded() -> Iterator[Case]:
    for row in read(HERE / "vllm-0.32.0-targets.jsonl.gz"):
        if (
            "layer_class" in row
            and "weights absent" not in row["note"]
            and row["result"].get("error") != "ValidationError"
        ):
            yield Case(
                "vllm",
                row["note"],
                row["config"],
                row["layer_name"],
                row["layer_class"],
                row["packed_modules_mapping"],
                row["result"],
            )
    for row in read(HERE / "sglang-0.5.23-targets.jsonl.gz"):
        config, layer = row["quantization_config"], row["layer"]
        broken = any(g.get("targets") is None or g.get("weights") is None for g in config["config_groups"].values())
        if not broken and layer["class"] != "RadixAttention" and "sparsity_config" not in config:
            yield Case(
                "sglang",
                row["note"],
                config,
                layer["prefix"],
                layer["class"],
                config.get("packed_modules_mapping") or {},
                row["result"],
            )


CASES = [case for case in recorded() if "sparsity" not in case.note and "linear_fp8_config" not in case.config]


def theirs(case: Case) -> Place:
    if case.engine == "vllm":
        return vllm(case.targets, case.ignore, case.name, case.cls, case.packed)
    assert case.name is not None
    if case.cls == "FusedMoE":
        return sglang_experts({t: str(group_of(case, t)) for t in case.targets}, case.ignore, case.name, case.packed)
    return sglang(case.targets, case.ignore, case.name, case.cls, case.packed)


def recorded_place(case: Case) -> Place:
    result = case.result
    if case.engine == "vllm":
        return Place(bool(result.get("ignored")), result.get("target"), result.get("error", ""))
    return Place(error=result["exc"]) if not result["ok"] else Place()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.engine}-{case.note}-{case.cls}")
def test_what_an_engine_takes_is_predicted(case: Case) -> None:
    place, want = theirs(case), recorded_place(case)
    if case.engine == "vllm":
        assert place == want
    elif (
        want.error
        and want.error not in ("AttributeError", "KeyError")
        and "only pack-quantized" not in case.result["msg"]
    ):
        assert place.error == want.error  # errors of the scheme come after the group is found
    elif not want.error:
        quantized = case.result["scheme"] is not None or case.result["method"] == "Mxfp4MoEMethod"
        assert (place.target is not None, place.error) == (quantized, "")


def members(case: Case) -> list[str]:
    """The modules of the checkpoint that the engine's layer stands for."""
    name = case.name or ""
    if case.cls == "FusedMoE":
        return [f"{name}.{expert}.{last}" for expert in range(2) for last in ("gate_proj", "up_proj", "down_proj")]
    last = name.rpartition(".")[2]
    return [name.replace(last, member) for member in case.packed[last]] if last in case.packed else [name]


def ours(case: Case) -> list[tuple[bool, str | None]]:
    """(ignored, group) of each module."""
    index = TargetIndex(list(case.groups.items()), case.ignore)
    classes = (CLASSES.get(case.cls, case.cls),)
    places = []
    for name in members(case):
        match = index.match(name, classes)
        ignored = index.ignored_by(name, classes) is not None
        places.append((ignored, None if ignored or match is None else match.group))
    return places


def group_of(case: Case, target: str | None) -> str | None:
    """The last group with the target is the one whose args count."""
    found = None
    for group, targets in case.groups.items():
        found = group if target in targets else found
    return found


def kinds(case: Case) -> set[str]:
    """The listed kinds that the config has, each judged by itself."""
    targets, ignore, name = case.targets, case.ignore, case.name or ""
    modules, last = members(case), (case.name or "").rpartition(".")[2]
    index = TargetIndex(list(case.groups.items()), [])
    mine = {match.group if (match := index.match(m, (CLASSES.get(case.cls, case.cls),))) else None for m in modules}
    hit = [[t for t in targets if TargetIndex([("g", [t])]).match(m, ())] for m in modules]
    plain = [t for t in targets if not t.startswith("re:")]
    found = set()
    if any(index.engine_order_differs(m, (CLASSES.get(case.cls, case.cls),)) for m in modules):
        found.add("order")
    if any(t.lower() in case.cls.lower() and t != CLASSES.get(case.cls) and t != case.cls for t in plain):
        found.add("class-substring")
    if any(t == case.cls and t != CLASSES.get(case.cls) for t in plain):
        found.add("engine-class")
    if any(t.startswith("re:") and sglang([t], [], "\0", case.cls, {}).target for t in targets):
        found.add("class-regex")
    if case.cls == "ParallelLMHead" and "Linear" in targets:
        found.add("head-class")
    if case.cls == "ParallelLMHead" and any(name.endswith("." + t) for t in plain):
        found.add("head-suffix")
    if case.cls in ("FusedMoE", "RoutedExperts"):
        found.add("experts-first")
        if "Linear" in targets:
            found.add("experts-class")
    if last in case.packed or any(name.endswith(key) for key in case.packed):
        if len(mine) > 1:
            found.add("fused-first" if None not in mine else "fused-some")
        if any(hit) and "Linear" in targets:
            found.add("fused-class")
        if any(
            t.startswith("re:") and sglang([t], [], name, "\0", {}).target for t in [*targets, *(e for e in ignore)]
        ):
            found.add("fused-accident")
        if (
            last not in case.packed
            or name in ignore
            or last in ignore
            or any(name.count(key) > 1 for key in case.packed)
        ):
            found.add("fused-name")
    ignored = [TargetIndex([], ignore).ignored_by(m, ()) is not None for m in modules]
    if any(ignored) and not all(ignored):
        found.add("ignore-some")
    if any(e in (case.cls, CLASSES.get(case.cls)) for e in ignore):
        found.add("ignore-class")
    if any(m.endswith("." + e) for m in modules for e in ignore):
        found.add("ignore-suffix")
    if None in mine:
        found.add("no-target")
    if case.groups != case.kept:
        found.add("attention-group")
    if not name:
        found.add("nameless")
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.engine}-{case.note}-{case.cls}")
def test_a_difference_is_one_of_the_listed_kinds(case: Case) -> None:
    place = theirs(case)
    engine = (place.ignored, group_of(case, place.target))
    if place.error or any(mine != engine for mine in ours(case)):
        assert listed(kinds(case), case.engine), (place, ours(case))


def listed(codes: set[str], engine: str) -> set[str]:
    return {d.code for d in TARGET_DIFFERENCES if d.code in codes and engine in d.engines}


def test_every_kind_is_met() -> None:
    met = {(code, case.engine) for case in CASES for code in kinds(case)}
    never = {(d.code, e) for d in TARGET_DIFFERENCES for e in d.engines} - met
    # of these the records have no layer, or none that is looked up
    assert never <= UNRECORDED


UNRECORDED = {
    *(("override", "sglang"), ("refused", "vllm"), ("refused", "sglang"), ("experts-class", "vllm")),
    *(("head-suffix", "vllm"), ("ignore-suffix", "vllm"), ("engine-class", "sglang"), ("order", "vllm")),
}


def test_the_engines_order_is_a_problem_of_the_plan() -> None:
    import quantdispatch as qd

    case = next(c for c in CASES if c.note == "two regexes match, first wins")
    config = {**case.config, "config_groups": {
        name: {**group, "weights": {**group["weights"], "num_bits": 4 + 4 * number}}
        for number, (name, group) in enumerate(case.config["config_groups"].items())
    }}  # fmt: skip
    plan = qd.plan(config, modules={"model.layers.0.self_attn.qkv_proj": "Linear"}, strict=False)
    assert sequence(plan.problems).count("engine-order") == (1 if "order" in kinds(case) else 0)


def sequence(problems: Sequence[Any]) -> list[str]:
    return [problem.code for problem in problems]
