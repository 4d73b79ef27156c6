"""Layers that stand for all others where there are no tensors: a config.json alone names patterns, not modules.

One representative for each target of a config group and each kind of layer that it can mean, with unknown shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from .config_models import ConfigGroup, QuantConfig
from .modules import EMBEDDING, LINEAR, Module, config_parts, kind_of_classes, named_kind
from .resolver import Assignment
from .targets import TargetIndex

CACHE = "re:.*self_attn$"
_EXPERT_COUNTS = (
    "num_experts",
    "n_routed_experts",
    "num_local_experts",
    "moe_num_experts",
    "num_moe_experts",
    "num_routed_experts",
)
_CLASS = re.compile(r"[A-Z]\w*")
_EXPERT_MODULES = ("mlp.experts.0", "ffn.experts.0", "block_sparse_moe.experts.0", "feed_forward.experts.0")
_PREFIXES = ("", "model.", "language_model.model.", "model.language_model.")


def representatives(
    config: QuantConfig, raw: Mapping[str, Any], index: TargetIndex
) -> Iterator[tuple[Module, Assignment]]:
    """Modules with where they stand in the config, quantized ones first, then those ignored by their exact name."""
    groups = {group.name: group for group in config.groups}
    owner = {target: group for group in config.groups for target in group.targets}
    experts = has_experts(raw)
    seen: set[str] = set()
    for target, group in owner.items():
        for module in _of_target(target, group, experts, raw, index):
            if module.name in seen:
                continue
            seen.add(module.name)
            if module.name == target and not target.startswith("re:") and not _CLASS.fullmatch(target):
                yield module, _by_name(module, groups, index)
            else:
                yield module, Assignment(group, target)
    for entry in config.ignore:
        if not entry.startswith("re:") and not _CLASS.fullmatch(entry) and entry not in seen:
            seen.add(entry)
            kind, classes = named_kind(entry)
            yield Module(entry, kind, classes, f"{classes[0]}, from its name"), Assignment(ignored_by=entry)


def _by_name(module: Module, groups: Mapping[str, ConfigGroup], index: TargetIndex) -> Assignment:
    ignored = index.ignored_by(module.name, module.classes)
    match = index.match(module.name, module.classes)
    if ignored is not None or match is None:
        return Assignment(ignored_by=ignored)
    return Assignment(groups[match.group], match.target)


def _of_target(
    target: str, group: ConfigGroup, experts: bool, raw: Mapping[str, Any], index: TargetIndex
) -> Iterator[Module]:
    if target.startswith("re:"):
        for first, kind in zip((True, False), _regex_kinds(target, group, experts), strict=False):
            yield _named(target, kind, "from the words of the pattern", first)
    elif _CLASS.fullmatch(target):
        kind = (
            "moe"
            if "moe" in target.lower() or "expert" in target.lower()
            else kind_of_classes("", (target,)) or "linear"
        )
        yield Module(target, kind, (target,), f"{target}, a class")
        if target == "Linear":
            if experts and not _ignored_everywhere(index):
                yield _named(target, "moe", "from the model's config", False)
            if _has_own_head(raw) and index.ignored_by("lm_head", LINEAR) is None:
                yield Module("lm_head", "lm_head", LINEAR, "Linear, from the model's config")
    else:
        kind, classes = named_kind(target)
        yield Module(target, kind, classes, f"{classes[0]}, from its name")


def _named(target: str, kind: str, why: str, first: bool) -> Module:
    """A pattern that means layers of two kinds has two entries; the second says its kind in its name."""
    classes = EMBEDDING if kind == "embedding" else ("Attention",) if kind == "attention" else LINEAR
    return Module(target if first else f"{target} [{kind}]", kind, classes, f"{classes[0]}, {why}")


def _regex_kinds(target: str, group: ConfigGroup, experts: bool) -> Iterator[str]:
    words = re.sub(r"shared_experts?", "", target)
    if "experts" in words:
        yield "moe"
    elif "lm_head" in words:
        yield "lm_head"
    elif re.search(r"embed|wte", words):
        yield "embedding"
    elif group.weights is None and re.search(r"attn\)?\$?$|attention\)?\$?$", words):
        yield "attention"
    else:
        yield "linear"
        if experts and any(TargetIndex([("group", [target])]).match(name, LINEAR) for name in _expert_names()):
            yield "moe"


def _ignored_everywhere(index: TargetIndex) -> bool:
    return all(index.ignored_by(name, LINEAR) is not None for name in _expert_names())


def _expert_names() -> Iterator[str]:
    """Names that routed experts have in one model or another."""
    for prefix in _PREFIXES:
        for layer in (5, 40):
            for experts in _EXPERT_MODULES:
                for projection in ("gate_proj", "up_proj", "down_proj", "w1", "w2"):
                    yield f"{prefix}layers.{layer}.{experts}.{projection}"


def has_experts(raw: Mapping[str, Any]) -> bool:
    """Does the model's config speak of routed experts?"""
    return any(
        isinstance(count := part.get(key), int) and count > 1 for part in config_parts(raw) for key in _EXPERT_COUNTS
    )


def _has_own_head(raw: Mapping[str, Any]) -> bool:
    parts = config_parts(raw)
    return any("vocab_size" in p for p in parts) and any(p.get("tie_word_embeddings") is False for p in parts)
