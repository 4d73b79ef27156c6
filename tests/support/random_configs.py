"""Random configs by a seed: valid ones, real ones with a few things changed, and garbage.

``RandomConfigs(seed)`` is an iterator of ``(how, config)``; ``text(rng)`` gives JSON texts, with doubled keys and more.
The same seed gives the same configs.
"""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SHARED = Path(__file__).parents[1] / "data" / "configs" / "shared"

STRATEGIES = ("tensor", "channel", "group", "block", "token", "tensor_group", "attn_head")
FORMATS = (
    *("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "nvfp4-pack-quantized", "dense"),
    *("mxfp4-pack-quantized", "mxfp6-pack-quantized", "mxfp8-quantized", "mixed-precision", "fakequant"),
    *("marlin-24", "sparse-24-bitmask", "sparse-bitmask", "PACK_QUANTIZED", "no-such-format", "", "é"),
)
PRESETS = ("W4A16", "W8A8", "FP8_DYNAMIC", "NVFP4", "MXFP4", "MXFP8A16", "w4a16", "UNQUANTIZED", "W9A16", "FP7")
TARGETS = (
    *("Linear", "Embedding", "LlamaAttention", "Module", "lm_head", "model.layers.0.self_attn.q_proj", "", " "),
    *("re:.*self_attn.*", "re:.*mlp.*", "re:.*experts.*", "re:.*lm_head", "re:.*embed_tokens$", "re:.*self_attn$"),
    *("re:", "re:(", "re:[", "re:(a+)+$", "re:(?=.*a)b", "re:.*\\.(56|57)\\..*", "re:^model\\.layers\\.[0-2]\\.", "*"),
    *(
        "re:(?P<a>x)(?P=a)",
        "re:\\",
        "re:" + "a?" * 30 + "a" * 30,
        "re:(.*)(.*)(.*)x",
        "model.layers.0.mlp.experts.0.w1",
    ),
)
WORDS = (
    "",
    "a",
    "Linear",
    "re:.*",
    "true",
    "null",
    "\0",
    "\ud800",
    "é" * 5,
    "a\nb",
    "x" * 5000,
    "__proto__",
    "torch.int8",
)
KEYS = (
    *("config_groups", "quant_method", "format", "ignore", "kv_cache_scheme", "sparsity_config", "transform_config"),
    *("targets", "weights", "input_activations", "output_activations", "num_bits", "type", "strategy", "symmetric"),
    *("group_size", "dynamic", "block_structure", "actorder", "scale_dtype", "zp_dtype", "observer", "version"),
    *("quantization_config", "text_config", "compression_config", "quantization", "num_experts", "model_type"),
    *("architectures", "vocab_size", "tie_word_embeddings", "quantization_status", "global_compression_ratio"),
)


class RandomConfigs:
    """Endless. ``how`` says by which of the ways a config was made."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.real = [
            json.loads(path.read_text()) for path in sorted(SHARED.glob("*.json")) if path.stat().st_size < 9000
        ]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        ways = (self.valid, self.nearly, self.mutated, self.garbage, self.merged, self.large)
        while True:
            (way,) = self.rng.choices(ways, weights=(25, 25, 30, 15, 4, 1))
            yield way.__name__, way()

    # ------------------------------------------------------------------------------------------------------ the ways

    def valid(self) -> dict[str, Any]:
        groups = {f"group_{i}": self.group() for i in range(self.rng.choice((1, 1, 1, 2, 3)))}
        block = {
            "quant_method": "compressed-tensors",
            "format": self.rng.choice(FORMATS[:11]),
            "config_groups": groups,
            "ignore": self.some(TARGETS[:13], 3),
        }
        if self.rng.random() < 0.2:
            block["kv_cache_scheme"] = self.args()
        if self.rng.random() < 0.1:
            block["transform_config"] = {"config_groups": {"u": self.transform()}}
        model = {"num_experts": 8, "vocab_size": 9, "tie_word_embeddings": False} if self.rng.random() < 0.4 else {}
        return self.rng.choice(
            ({**model, "quantization_config": block}, block, {"text_config": {"quantization_config": block}})
        )

    def nearly(self) -> dict[str, Any]:
        raw = self.valid()
        self.change(raw, 1)
        return raw

    def mutated(self) -> Any:
        raw = copy.deepcopy(self.rng.choice(self.real))
        self.change(raw, self.rng.choice((1, 1, 2, 5)))
        return raw

    def garbage(self) -> Any:
        raw = self.value(self.rng.choice((1, 2, 4)))
        return self.rng.choice(
            (raw, {"quantization_config": raw}, {"config_groups": raw}, {"config_groups": {"g": raw}})
        )

    def merged(self) -> Any:
        """Parts of two real configs, under keys that may not fit."""
        first, second = copy.deepcopy(self.rng.choice(self.real)), copy.deepcopy(self.rng.choice(self.real))
        self.rng.choice(list(_objects(first)))[self.rng.choice(KEYS)] = self.rng.choice(list(_objects(second)))
        return first

    def large(self) -> Any:
        raw = self.valid()
        block: Any = raw.get("quantization_config") or raw.get("text_config", {}).get("quantization_config") or raw
        names = [f"model.layers.{i}.mlp.up_proj" for i in range(self.rng.choice((1000, 20_000)))]
        what = self.rng.choice(("ignore", "targets", "regexes", "groups", "deep", "keys"))
        if what == "ignore":
            block["ignore"] = names
        elif what == "targets":
            block["config_groups"] = {"g": {**self.group(), "targets": names[:3000]}}
        elif what == "regexes":
            block["ignore"] = [f"re:.*layers.{i}.*" for i in range(self.rng.choice((200, 2000)))]
        elif what == "groups":
            block["config_groups"] = {f"group_{i}": self.group() for i in range(300)}
        elif what == "deep":
            block["ignore"] = _nested(self.rng.choice((50, 500, 100_000)))
        else:
            block.update({f"key_{i}": i for i in range(2000)})
        return raw

    # ----------------------------------------------------------------------------------------------------- the parts

    def group(self) -> dict[str, Any]:
        sides = {"weights": self.args(), "input_activations": None, "output_activations": None}
        for side, chance in (("weights", 0.9), ("input_activations", 0.5), ("output_activations", 0.1)):
            sides[side] = self.args() if self.rng.random() < chance else None
        group = {"targets": self.some(TARGETS, 3) or ["Linear"], **sides}
        if self.rng.random() < 0.3:
            group["format"] = self.rng.choice(FORMATS[:8])
        return group

    def args(self) -> dict[str, Any]:
        rng = self.rng
        strategy = rng.choice(STRATEGIES)
        args: dict[str, Any] = {
            "num_bits": rng.choice((4, 8, 8, 4, 2, 6, 16)),
            "type": rng.choice(("int", "float")),
            "strategy": strategy,
        }
        if args["type"] == "float":
            args["num_bits"] = rng.choice((4, 6, 8))
        if strategy in ("group", "tensor_group"):
            args["group_size"] = rng.choice((16, 32, 64, 128))
        if strategy == "block":
            args["block_structure"] = rng.choice(([128, 128], "128x128", [64, 128]))
        if strategy == "token" or (rng.random() < 0.2 and strategy in ("tensor", "group", "tensor_group")):
            args["dynamic"] = True
        if strategy == "tensor_group" and rng.random() < 0.5:
            args["dynamic"] = "local"
        args["symmetric"] = rng.random() < 0.8
        if rng.random() < 0.2:
            args["scale_dtype"] = rng.choice(("torch.uint8", "torch.float8_e4m3fn", "bfloat16"))
        if rng.random() < 0.1 and strategy in ("group", "tensor_group"):
            args["actorder"] = rng.choice(("group", "static", "weight", None))
        return args

    def transform(self) -> Any:
        apply = {
            "targets": self.some(TARGETS, 2),
            "location": self.rng.choice(("input", "weight_input", "q_attn", "x")),
        }
        return {"type": "hadamard", "apply": [apply]}

    def some(self, values: tuple[str, ...], most: int) -> list[str]:
        return self.rng.sample(values, self.rng.randint(0, most))

    def change(self, raw: Any, times: int) -> None:
        """Put, take away or double something, anywhere."""
        for _ in range(times):
            places = [
                (holder, key)
                for holder in _holders(raw)
                for key in (holder if isinstance(holder, dict) else range(len(holder)))
            ]
            if not places:
                return
            holder, key = self.rng.choice(places)
            what = self.rng.random()
            if what < 0.55:
                holder[key] = self.value(2)
            elif what < 0.75:
                del holder[key]
            elif what < 0.9 and isinstance(holder, dict):
                holder[self.rng.choice(KEYS)] = holder[key] if self.rng.random() < 0.5 else self.value(1)
            elif isinstance(holder, list):
                holder.extend([holder[key]] * self.rng.choice((1, 50)))

    def value(self, depth: int) -> Any:
        rng = self.rng
        choice = rng.random()
        if depth and choice < 0.25:
            return {self.key(): self.value(depth - 1) for _ in range(rng.randint(0, 4))}
        if depth and choice < 0.45:
            return [self.value(depth - 1) for _ in range(rng.randint(0, 4))]
        return self.scalar()

    def key(self) -> Any:
        return self.rng.choice(KEYS) if self.rng.random() < 0.7 else self.rng.choice((*WORDS, 0, None, 1.5, True))

    def scalar(self) -> Any:
        rng = self.rng
        numbers = (0, 1, -1, 4, 8, 16, 128, 2**31, 2**63, -(2**70), 10**400, 1.5, math.nan, math.inf, -0.0, 1e308)
        return rng.choice(
            (None, True, False, rng.choice(numbers), rng.choice(WORDS), rng.choice(TARGETS), rng.choice(FORMATS),
             rng.choice(STRATEGIES), rng.choice(PRESETS), rng.randint(-5, 300), b"bytes", object(), {1, 2}, ("a", 1))
        )  # fmt: skip


def text(rng: random.Random) -> str:
    """A text that may stand in a config.json: doubled keys, numbers of every kind, cut off, not JSON at all."""
    raw = _as_json(next(iter(RandomConfigs(rng.getrandbits(40))))[1])
    what = rng.random()
    if what < 0.3 and len(raw) > 2:
        cut = rng.randrange(len(raw))
        return raw[:cut] + rng.choice(('"', "}", "]", ",", "\0", "1e999", "é", "")) + raw[cut + 1 :]
    if what < 0.5:
        key = rng.choice(KEYS)
        return raw.replace(f'"{key}":', f'"{key}": 1, "{key}":', 1)
    if what < 0.6:
        return raw[: rng.randrange(len(raw) + 1)]
    if what < 0.65:
        return rng.choice(
            ("[" * 100_000, '{"a":' * 5000, "9" * 10_000, '{"num_bits": ' + "9" * 5000 + "}", "NaN", "\ufeff{}")
        )
    return raw


def _objects(raw: Any) -> Iterator[dict[str, Any]]:
    return (holder for holder in _holders(raw) if isinstance(holder, dict))


def _holders(raw: Any) -> Iterator[Any]:
    todo = [raw]
    while todo:
        value = todo.pop()
        if isinstance(value, (dict, list)):
            yield value
            todo.extend(value.values() if isinstance(value, dict) else value)


def _nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


def _as_json(raw: Any) -> str:
    try:
        return json.dumps(raw, default=str, skipkeys=True)
    except RecursionError:
        return "[" * 200_000
