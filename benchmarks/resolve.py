"""Which config group and which ignore entry a name belongs to: CPU time a name, for all names of a large mixture of
experts.

Every round makes a fresh ``TargetIndex``, compiling included, and asks about each name once, so that nothing is
remembered from before. Beside it stand compressed-tensors' and vLLM's own functions for the same question, where they
are installed, on some of the same names in the same round (they remember nothing, so fewer names do); and what was
recorded for vLLM 0.32 on another occasion.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

LINEAR = ("Linear", "Module")
SAMPLED = 499  # one in so many names is asked of the others

#: microseconds a name of vLLM 0.32's ``get_scheme_dict`` on these names, least of 5 rounds, by ignore list and groups
RECORDED = {
    ("none", 1): 2.7,
    ("none", 4): 12.6,
    ("4 regexes, 1 literal", 1): 19.1,
    ("4 regexes, 1 literal", 4): 28.6,
    ("489 literals", 1): 58.3,
    ("489 literals", 4): 68.4,
}

Groups = Sequence[tuple[str, Sequence[str]]]
Resolve = Callable[[Sequence[str]], Any]


def names() -> Iterator[str]:
    """47,275 names: in each of 61 layers 7 beside the experts, and 3 of each of 256 experts."""
    beside = [f"self_attn.{p}" for p in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")]
    beside += [f"mlp.shared_experts.{p}_proj" for p in ("gate", "up")] + ["mlp.gate"]
    for layer in range(61):
        prefix = f"model.layers.{layer}"
        yield from (f"{prefix}.{part}" for part in beside)
        yield from (f"{prefix}.mlp.experts.{e}.{p}_proj" for e in range(256) for p in ("gate", "up", "down"))


def ignores() -> dict[str, list[str]]:
    """Ignore lists. The second is Kimi-K2's with its gates, the others what writers spell out layer by layer."""
    parts = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "rotary", "indexer", "norm")
    spelled = [f"model.layers.{layer}.self_attn.{p}" for layer in range(61) for p in parts] + ["lm_head"]
    escaped = [name.replace(".", r"\.") for name in spelled]
    kimi = ["re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", "re:.*mlp.gate$"]
    return {
        "none": [],
        "4 regexes, 1 literal": ["lm_head", *kimi],
        "489 literals": spelled,
        "489 regexes with digits": [f"re:{text}" for text in escaped],
        "489 regexes with digits, .*": [f"re:.*{text.removeprefix('model')}$" for text in escaped],
        "all names as literals": list(names()),
    }


def groups() -> dict[int, Groups]:
    """Config groups by their number: a class, and with four also three regular expressions."""
    targets = ["re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*experts\.\d+\.down_proj$", "Linear"]
    return {1: [("group_0", ["Linear"])], 4: [(f"group_{i}", [target]) for i, target in enumerate(targets)]}


# ---------------------------------------------------------------------------------------------------------- candidates


def all_at_once(groups: Groups, ignore: Sequence[str]) -> Resolve:
    from quantdispatch.registry.targets import TargetIndex

    def resolve(names: Sequence[str]) -> Any:
        return TargetIndex(groups, ignore).match_many(names, [LINEAR] * len(names))

    return resolve


def one_by_one(groups: Groups, ignore: Sequence[str]) -> Resolve:
    from quantdispatch.registry.targets import TargetIndex

    def resolve(names: Sequence[str]) -> Any:
        index = TargetIndex(groups, ignore)
        return [(index.ignored_by(name, LINEAR), index.match(name, LINEAR)) for name in names]

    return resolve


def compressed_tensors(groups: Groups, ignore: Sequence[str]) -> Resolve:
    import torch
    from compressed_tensors.utils.match import is_match, match_targets

    module = torch.nn.Linear(1, 1, device="meta")
    targets = [target for _, entries in groups for target in entries]

    def resolve(names: Sequence[str]) -> Any:
        return [(is_match(name, module, ignore), match_targets(name, module, targets)) for name in names]

    return resolve


def vllm(groups: Groups, ignore: Sequence[str]) -> Resolve:
    import torch
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig

    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True, "dynamic": False}
    config = CompressedTensorsConfig.from_config(
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {name: {"targets": list(entries), "weights": weights} for name, entries in groups},
            "ignore": list(ignore),
        }
    )
    layer = torch.nn.Linear(1, 1, device="meta")

    def resolve(names: Sequence[str]) -> Any:
        return [config.get_scheme_dict(layer, name) for name in names]

    return resolve


CANDIDATES = {
    "all_at_once": (all_at_once, 1),
    "one_by_one": (one_by_one, 1),
    "compressed_tensors": (compressed_tensors, SAMPLED),
    "vllm": (vllm, SAMPLED),
}


def measure(rounds: int = 7) -> list[dict[str, Any]]:
    """A row an ignore list and number of groups: microseconds a name, the least of ``rounds`` interleaved rounds."""
    everything = list(names())
    cases = {(what, n): (of, ignore) for what, ignore in ignores().items() for n, of in groups().items()}
    least: dict[tuple[str, int, str], float | str] = {}
    for _ in range(rounds):
        for (what, n), (of, ignore) in cases.items():
            for how, (make, every) in CANDIDATES.items():
                asked = everything[:: every * (20 if every > 1 and len(ignore) > 1000 else 1)]
                took = _microseconds(make, of, ignore, asked)
                before = least.get((what, n, how), took)
                least[what, n, how] = took if isinstance(took, str) or isinstance(before, str) else min(before, took)
    return [
        {"ignore": what, "groups": n}
        | {f"{how}_us": least[what, n, how] for how in CANDIDATES}
        | {"vllm 0.32, recorded_us": RECORDED.get((what, n))}
        for what, n in cases
    ]


def _microseconds(
    make: Callable[[Groups, Sequence[str]], Resolve], of: Groups, ignore: Sequence[str], asked: Sequence[str]
) -> float | str:
    try:
        resolve = make(of, ignore)
    except ImportError:
        return "not installed"
    start = time.process_time()
    resolve(asked)
    return (time.process_time() - start) * 1e6 / len(asked)
