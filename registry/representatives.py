"""Layers that stand for all others where there are no tensors: a config.json alone names patterns, not modules.

One representative for each target of a config group and each kind of layer that it can mean, with unknown shapes. What
a pattern means is found by trying it on the names that layers usually have; where none fits, by the words in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .config_models import ConfigGroup, QuantConfig
from .modules import EMBEDDING, LINEAR, Module, config_parts, is_cached_attention, kind_of_classes, named_kind
from .problem import Problem
from .resolver import Assignment
from .targets import TargetIndex, TargetMatch
from .usual_names import ATTENTIONS, EMBEDDINGS, EXPERTS, HEADS, LAYERS, LINEARS, beside_experts, in_blocks

CACHE = "re:.*self_attn$"
_CLASS = re.compile(r"[A-Z]\w*")
_EXPERT_COUNT = re.compile(r"(?:\w+_)?(?:n|num)_(?:\w+_)?experts?")
_NO_MATRIX = re.compile(r"norm\d*$|(?:^|[._])conv(?:1d|2d|3d)?$|rotary_emb|act_fn$")
_NUMBERS_TRIED = 8
#: names times regular expressions, and names: what is found must not take long, nor depend on how long it takes
_MOST_ASKED, _FEWEST_ASKED = 100_000, 100
#: of one layer; that many patterns that all match it are no config of anybody's
_MATCHES_LOOKED_AT = 64


def representatives(
    config: QuantConfig, raw: Mapping[str, Any], index: TargetIndex, survey: Survey | None = None
) -> Iterator[tuple[Module, Assignment]]:
    """Modules with where they stand in the config, quantized ones first, then those ignored by their exact name.

    Attention that nothing quantizes is none of them: it is no layer.
    """
    for module, place in _all(config, raw, index, survey):
        if module.kind != "attention" or place.group is not None:
            yield module, place


def _all(
    config: QuantConfig, raw: Mapping[str, Any], index: TargetIndex, survey: Survey | None
) -> Iterator[tuple[Module, Assignment]]:
    groups = {group.name: group for group in config.groups}
    owner = {target: group for group in config.groups for target in group.targets}
    survey = survey or Survey(index, owner)
    experts = has_experts(raw)
    seen: set[str] = set()
    for target, group in _in_order(config, owner):
        for module in _of_target(target, group, experts, raw, index, survey):
            if module.name in seen:
                continue
            seen.add(module.name)
            if module.name == target and not target.startswith("re:") and not _CLASS.fullmatch(target):
                yield module, _by_name(module, groups, index)
            else:
                ignored = survey.ignored(target, module.kind)
                yield module, Assignment(ignored_by=ignored) if ignored else Assignment(group, target)
    for entry in config.ignore:
        if not entry.startswith("re:") and not _CLASS.fullmatch(entry) and entry not in seen:
            seen.add(entry)
            # norms and convolutions are never quantized, and are no layers of a plan
            if not _NO_MATRIX.search(entry):
                yield _by_its_name(entry), Assignment(ignored_by=entry)


def _in_order(config: QuantConfig, owner: Mapping[str, ConfigGroup]) -> Iterator[tuple[str, ConfigGroup]]:
    """Targets by the names of their groups: an object's keys have no order that would mean anything."""
    for group in sorted(config.groups, key=lambda group: re.sub(r"\d+", lambda n: n[0].zfill(9), group.name)):
        yield from ((target, group) for target in dict.fromkeys(group.targets) if owner[target] is group)


def overlaps(config: QuantConfig, survey: Survey) -> list[Problem]:
    """Patterns of two groups that both match layers of usual names, where the groups differ and the file's author wrote
    them."""
    if config.translated_by is not None:
        return []
    groups = {group.name: group for group in config.groups}
    return [
        Problem(
            "target-overlap",
            f"{first.target!r} in {first.group} and {second.target!r} in {second.group} both match layers such as "
            f"{name}: {first.group} counts, as compressed-tensors sorts targets",
            where=first.target,
        )
        for (first, second), name in survey.shared.items()
        if not config.alike(groups[first.group], groups[second.group])
    ]


@dataclass
class _Seen:
    kept: bool = False
    ignored_by: str | None = None


@dataclass
class Survey:
    """What regular expressions among the targets do with layers of usual names.

    ``shared``: pairs of targets of two groups that match one layer, the one that counts first, with that layer's name.
    Raises ``ConfigError`` when a regular expression runs out of time.
    """

    index: TargetIndex
    targets: Iterable[str]
    shared: dict[tuple[TargetMatch, TargetMatch], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._seen: dict[str, dict[str, _Seen]] = {t: {} for t in self.targets if t.startswith("re:")}
        if not self._seen:
            return
        self._left = max(_FEWEST_ASKED, _MOST_ASKED // self.index.regexes)
        for name in EMBEDDINGS:
            self._see(name, "embedding", EMBEDDING)
        for name in HEADS:
            self._see(name, "lm_head", LINEAR)
        for layer in LAYERS:
            self._ask(layer)
        # patterns over certain layers spell their numbers
        numbers = [int(n) for target in self._seen for n in re.findall(r"\d{1,3}", target)]
        for layer in [n for n in dict.fromkeys([*numbers, 1, 12, 25, 61]) if n not in LAYERS][:_NUMBERS_TRIED]:
            if all(self._seen.values()):
                break
            self._ask(layer)

    def _ask(self, layer: int) -> None:
        for kind, names in (("linear", LINEARS), ("moe", EXPERTS)):
            for name in in_blocks([layer], names):
                self._see(name, kind, LINEAR)
        for name in in_blocks([layer], ATTENTIONS):
            self._see(name, "attention", ("Attention",))

    def _see(self, name: str, kind: str, classes: tuple[str, ...]) -> None:
        self._left -= 1
        if self._left < 0:
            return
        matches = [m for m in self.index.matches(name, classes)[:_MATCHES_LOOKED_AT] if m.how != "class"]
        if not matches:
            return
        ignored = self.index.ignored_by(name, classes)
        for match in matches:
            if match.target in self._seen:
                seen = self._seen[match.target].setdefault(kind, _Seen())
                seen.kept |= ignored is None
                seen.ignored_by = seen.ignored_by or ignored
        if ignored is None and kind != "attention":
            for other in matches[1:]:
                if other.group != matches[0].group:
                    self.shared.setdefault((matches[0], other), name)

    def kinds(self, target: str) -> set[str]:
        """The kinds of layers that a target was seen to match, ignored ones too."""
        return set(self._seen.get(target, ()))

    def ignored(self, target: str, kind: str | None) -> str | None:
        """The entry that ignores the layers of a kind that the target matches; ``None`` when any is left."""
        seen = self._seen.get(target, {}).get(kind or "")
        return None if seen is None or seen.kept else seen.ignored_by


def _by_its_name(name: str) -> Module:
    if name.rpartition(".")[2] in ATTENTIONS:
        return Module(name, "attention", ("Attention",), "attention, from its name")
    kind, classes = named_kind(name)
    return Module(name, kind, classes, f"{classes[0]}, from its name")


def _by_name(module: Module, groups: Mapping[str, ConfigGroup], index: TargetIndex) -> Assignment:
    ignored = index.ignored_by(module.name, module.classes)
    match = index.match(module.name, module.classes)
    if ignored is not None or match is None:
        return Assignment(ignored_by=ignored)
    return Assignment(groups[match.group], match.target)


def _of_target(
    target: str, group: ConfigGroup, experts: bool, raw: Mapping[str, Any], index: TargetIndex, survey: Survey
) -> Iterator[Module]:
    if target.startswith("re:"):
        head = _has_own_head(raw)
        for number, kind in enumerate(_regex_kinds(target, group, experts, head, survey)):
            yield _named(target, kind, "from the words of the pattern", not number)
    elif _CLASS.fullmatch(target):
        yield from _of_class(target, experts, raw, index)
    elif group.weights is None and group.inputs is not None and is_cached_attention(target):
        yield Module(target, "attention", ("Attention",), "attention, from its name")
    else:
        yield _by_its_name(target) if group.weights is None else _matrix(target)


def _matrix(name: str) -> Module:
    kind, classes = named_kind(name)
    return Module(name, kind, classes, f"{classes[0]}, from its name")


def _of_class(target: str, experts: bool, raw: Mapping[str, Any], index: TargetIndex) -> Iterator[Module]:
    if target != "Linear":
        moe = "moe" in target.lower() or "expert" in target.lower()
        kind = "moe" if moe else kind_of_classes("", (target,)) or "linear"
        yield Module(target, kind, (target,), f"{target}, a class")
        return
    routed = experts and any(index.ignored_by(name, LINEAR) is None for name in _expert_names())
    only_routed = routed and any(
        all(index.ignored_by(name, LINEAR) is not None for name in names) for names in beside_experts(raw)
    )
    if not only_routed:
        yield Module(target, "linear", (target,), "Linear, a class")
    if routed:
        yield _named(target, "moe", "from the model's config", only_routed)
    if _has_own_head(raw) and index.ignored_by("lm_head", LINEAR) is None:
        yield Module("lm_head", "lm_head", LINEAR, "Linear, from the model's config")


def _named(target: str, kind: str, why: str, first: bool) -> Module:
    """A pattern that means layers of two kinds has two entries; the second says its kind in its name."""
    classes = EMBEDDING if kind == "embedding" else ("Attention",) if kind == "attention" else LINEAR
    return Module(target if first else f"{target} [{kind}]", kind, classes, f"{classes[0]}, {why}")


def _regex_kinds(target: str, group: ConfigGroup, experts: bool, head: bool, survey: Survey) -> list[str]:
    """The kinds that a pattern means, the commonest first. ``experts``, ``head``: does the model have such layers?"""
    seen = survey.kinds(target)
    words = re.sub(r"shared_experts?", "", target)
    if group.weights is None and (seen == {"attention"} or re.search(r"(?i)att(?:n|ention)\)?\$?$", words)):
        return ["attention"]
    named_experts = "experts" in words
    usual: list[str] = ["linear", "moe"]
    kinds = [kind for kind in usual if kind in seen and (kind != "moe" or experts or named_experts)]
    if kinds:
        kinds = kinds[::-1] if named_experts else kinds
        return [*kinds, "lm_head"] if head and "lm_head" in seen else kinds
    for kind in ("lm_head", "embedding"):
        if kind in seen:
            return [kind]
    if named_experts:
        return ["moe"]
    if "lm_head" in words:
        return ["lm_head"]
    return ["embedding" if re.search(r"embed|wte", words) else "linear"]


def _expert_names() -> Iterator[str]:
    """Names that routed experts have in one model or another."""
    return in_blocks((5, 40), EXPERTS)


def has_experts(raw: Mapping[str, Any]) -> bool:
    """Does the model's config speak of routed experts?"""
    parts = config_parts(raw)
    parts += [part["moe"] for part in parts if isinstance(part.get("moe"), Mapping)]  # Mistral's params.json
    return any(
        _several(count)
        for part in parts
        for key, count in part.items()
        if isinstance(key, str) and _EXPERT_COUNT.fullmatch(key) and "shared" not in key and "zero" not in key
    )


def _several(count: Any) -> bool:
    """More than one expert, in some layer where the numbers are given layer by layer."""
    if isinstance(count, (list, tuple)):
        return any(_several(item) for item in count[:1000] if not isinstance(item, (list, tuple)))
    return isinstance(count, int) and not isinstance(count, bool) and count > 1


def _has_own_head(raw: Mapping[str, Any]) -> bool:
    parts = config_parts(raw)
    return any("vocab_size" in p for p in parts) and any(p.get("tie_word_embeddings") is False for p in parts)
