"""A layer's facts as the smallest ``quantization_config`` that has such a layer, to be pasted into a config.json."""

from __future__ import annotations

from typing import Any

from ..config_models import MIXED_PRECISION
from ..facts import LayerFacts
from ..legal import NO_FORMAT

#: a target that means one layer of each kind, also where there are no tensors to look at
_TARGETS = {
    "linear": "Linear",
    "moe": "model.layers.0.mlp.experts.0.up_proj",
    "lm_head": "lm_head",
    "embedding": "Embedding",
    "attention": "re:.*self_attn$",
}
_KEYS = {"weights": "weights", "inputs": "input_activations", "outputs": "output_activations"}


def config_of(facts: LayerFacts) -> dict[str, Any]:
    """A config whose only layer (or cache) has these facts."""
    if facts.kind == "kv_cache":
        scheme = facts.inputs.to_json() if facts.inputs is not None else None
        return {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": scheme}
    sides = {key: args.to_json() for side, key in _KEYS.items() if (args := getattr(facts, side)) is not None}
    config: dict[str, Any] = {"quant_method": "compressed-tensors"}
    if facts.format != NO_FORMAT:
        # a config of mixed precision whose group says nothing has no format
        config["format"] = MIXED_PRECISION if facts.format is None else facts.format
    config["config_groups"] = {"group_0": {"targets": [_TARGETS[facts.kind]], **sides}}
    return config
