"""Where engines find another config group for a layer, or none, than the writer meant: by kind of difference.

Section (b) of the facts on vLLM 0.32.0 and SGLang 0.5.23. What the writer means is in :mod:`..targets`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TargetDifference:
    """``input``: what stands in the config; ``engines``: engine to what it does; ``ours``: what we do with it."""

    code: str
    input: str
    engines: dict[str, str]
    ours: str


_BOTH = ("vllm", "sglang")


def _both(text: str) -> dict[str, str]:
    return dict.fromkeys(_BOTH, text)


TARGET_DIFFERENCES = (
    TargetDifference(
        "order",
        "several names or regular expressions match a layer",
        _both("takes the first in the order of the config"),
        "takes exact names, then regular expressions, then classes, each in alphabetical order, as the writer does; "
        "where engines take another group, the plan has the problem `engine-order`",
    ),
    TargetDifference(
        "class-substring",
        "a target that is a part of a class's name, in any letter case: `linear`, `Row`, `Embedding`",
        _both("matches every class of its own that contains it"),
        "matches classes by their whole name, as the writer does",
    ),
    TargetDifference(
        "class-regex",
        "a regular expression that fits the name of a class: `re:.*Linear`",
        _both("matches the class with it"),
        "matches names of modules only",
    ),
    TargetDifference(
        "engine-class",
        "the class of an engine: `QKVParallelLinear`, `ParallelLMHead`, `FusedMoE`",
        _both("matches its own class"),
        "matches the classes of the model that was quantized; no module of it has that class",
    ),
    TargetDifference(
        "head-class",
        "`Linear` where the head is quantized too",
        _both("leaves the head unquantized: its class is another one there"),
        "quantizes the head: it was a Linear to the writer",
    ),
    TargetDifference(
        "fused-first",
        "members of a fused layer (q, k, v) in groups with different args",
        _both("gives the whole fused layer the args of the first member"),
        "gives each member its own",
    ),
    TargetDifference(
        "fused-class",
        "`Linear` in one group and members of a fused layer by name in another",
        {"sglang": "takes the group of the class: the names are lost"},
        "names go before classes",
    ),
    TargetDifference(
        "fused-some",
        "some members of a fused layer are targets and others are not",
        {"vllm": "leaves the whole layer unquantized", "sglang": "raises ValueError"},
        "quantizes the members that are targets",
    ),
    TargetDifference(
        "fused-accident",
        "a regular expression for one member that fits the fused name: `re:.*v_proj` and `qkv_proj`",
        _both("takes it for the whole fused layer"),
        "takes it for that member",
    ),
    TargetDifference(
        "fused-name",
        "the fused name or a part of it (`my_qkv_proj`, `qkv_proj`), which no module of the checkpoint has",
        _both("matches the fused layer, and builds the names of members by replacing the key wherever it stands"),
        "matches nothing; the plan has the problem `unmatched-target` or `unmatched-ignore`",
    ),
    TargetDifference(
        "ignore-some",
        "some members of a fused layer, or projections of an expert, are ignored and others are not",
        _both("raises ValueError"),
        "leaves those members dense and quantizes the others",
    ),
    TargetDifference(
        "ignore-class",
        "the name of a class in `ignore`",
        _both("ignores nothing by it"),
        "ignores the modules of that class, as the writer does",
    ),
    TargetDifference(
        "ignore-suffix",
        "the end of a name in `ignore`: `down_proj`, `mlp.down_proj`",
        {"sglang": "ignores every module whose name ends with it"},
        "ignores nothing by it; where the module is stored dense, the plan has the problem `namespace-mismatch`",
    ),
    TargetDifference(
        "head-suffix",
        "`lm_head` as a target where the head's name is longer",
        {"sglang": "matches the head by the end of its name"},
        "matches whole names",
    ),
    TargetDifference(
        "no-target",
        "a layer that no target matches",
        {
            "vllm": "leaves it unquantized, and fails to load its tensors if they are quantized",
            "sglang": "raises ValueError",
        },
        "leaves it dense, and says so",
    ),
    TargetDifference(
        "experts-first",
        "targets or ignore entries for some experts",
        _both("asks for the three projections of expert 0 by the names gate_proj, up_proj and down_proj, for all"),
        "asks for every projection by its own name",
    ),
    TargetDifference(
        "experts-class",
        "`Linear` in one group and experts by name or by the class FusedMoE in another",
        {
            "vllm": "adds RoutedExperts as the last target, with the args of Linear",
            "sglang": "takes the first group whose target fits a projection, and mxfp4 of Linear for all",
        },
        "names go before classes",
    ),
    TargetDifference(
        "attention-group",
        "a group whose one target ends in `Attention`",
        {"vllm": "drops the group"},
        "plans the attention modules that it names",
    ),
    TargetDifference(
        "nameless",
        "a module that the engine's model builds without a name, such as Llama's embedding",
        {"vllm": "neither ignores it nor finds it by name: classes alone decide"},
        "goes by the names of the checkpoint",
    ),
    TargetDifference(
        "override",
        "`linear_fp8_config` beside the groups",
        {"sglang": "runs Fp8LinearMethod for every linear layer before anything else is looked at"},
        "reports an unknown key: compressed-tensors has none of that name",
    ),
    TargetDifference(
        "refused",
        "a group without targets or weights, sparsity with targets, a transform at an unknown place",
        _both("refuses the config, or quantizes nothing"),
        "raises ConfigError, or says what has no effect",
    ),
)
