"""What a check finds: values with a stable code, the rules and where they were written, and layers that show it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..facts import SIDES, LayerFacts
from ..rules.rule import Rule
from .paste import config_of


@dataclass(frozen=True)
class Code:
    """A kind of finding. ``docs/rule-checks.md`` has a section for each."""

    code: str
    name: str
    severity: str
    meaning: str


def _codes(*rows: tuple[str, str, str, str]) -> dict[str, Code]:
    return {name: Code(code, name, severity, meaning) for code, name, severity, meaning in rows}


#: by name
CODES = _codes(
    ("QD101", "empty-rule", "error", "no legal layer matches the rule"),
    ("QD102", "empty-box", "warning", "no legal layer matches one alternative of the rule"),
    ("QD103", "shadowed-rule", "error", "the rule never wins: others override it wherever it matches"),
    ("QD104", "redundant-rule", "warning", "without the rule every layer has the same scheme"),
    ("QD105", "redundant-box", "warning", "other alternatives of the rule match all that one of them matches"),
    ("QD201", "overlap", "error", "two rules match one layer, and nothing says who wins"),
    ("QD202", "idle-override", "warning", "the rule overrides one that it never meets"),
    ("QD203", "unknown-override", "error", "the rule overrides a name that no rule has"),
    ("QD204", "override-cycle", "error", "rules override each other in a circle"),
    ("QD205", "name-clash", "error", "one name stands for several rules or kernels"),
    ("QD301", "unusable-scheme", "error", "the rule's scheme cannot be imported, or is none"),
    ("QD302", "broken-plugin", "error", "a plugin could not be collected"),
    ("QD401", "gap", "error", "layers of the declared supported region that no rule matches"),
    ("QD901", "not-decided", "warning", "a question that needs more steps than the limit"),
)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or may be.

    ``code`` (stable, ``"QD201"``) and ``name`` (``"overlap"``) say what; ``severity`` is ``"error"`` or ``"warning"``;
    ``rules``, ``sources`` (``file:line``) and ``distributions`` say where, one for each rule involved, the rule to be
    changed first; ``witnesses`` are legal layers that show it, each a config with :meth:`configs`; ``count`` is how
    many layers of those that were tried are concerned, where that was counted.
    """

    code: str
    name: str
    severity: str
    message: str
    remedy: str = ""
    rules: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    distributions: tuple[str, ...] = ()
    witnesses: tuple[LayerFacts, ...] = ()
    count: int | None = None

    def __str__(self) -> str:
        return f"{self.code} {self.name}: {self.message}"

    def configs(self) -> tuple[dict[str, Any], ...]:
        """For each witness the smallest ``quantization_config`` that has such a layer; ``plan()`` takes it as it is."""
        return tuple(config_of(facts) for facts in self.witnesses)

    def to_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "name": self.name,
            "severity": self.severity,
            "message": self.message,
            "remedy": self.remedy,
            "rules": list(self.rules),
            "sources": list(self.sources),
            "distributions": list(self.distributions),
            "witnesses": [
                {"facts": facts_json(facts), "quantization_config": config_of(facts)} for facts in self.witnesses
            ],
            "count": self.count,
        }


def finding(
    name: str,
    message: str,
    *,
    rules: Sequence[Rule] = (),
    remedy: str = "",
    witnesses: Iterable[LayerFacts] = (),
    severity: str | None = None,
    count: int | None = None,
    distributions: Sequence[str] = (),
) -> Finding:
    """A finding of the kind ``name``, its places taken from ``rules`` (``distributions`` where there are none)."""
    code = CODES[name]
    return Finding(
        code=code.code,
        name=name,
        severity=severity or code.severity,
        message=message,
        remedy=remedy,
        rules=tuple(rule.name for rule in rules),
        sources=tuple(rule.source for rule in rules),
        distributions=tuple(distributions or (rule.distribution for rule in rules)),
        witnesses=tuple(witnesses),
        count=count,
    )


def placed(rule: Rule) -> str:
    """``"wNa16_int (quantdispatch, registry/rules/int_weights.py:41)"``"""
    return f"{rule.name} ({', '.join(part for part in (rule.distribution, rule.source) if part)})"


def listed(rules: Sequence[Rule]) -> str:
    """``"a"``, ``"a and b"``, ``"a, b and c"``, each with its place."""
    words = [placed(rule) for rule in rules]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def words(facts: LayerFacts) -> str:
    """``"linear layer, weights int4 symmetric, group 128, format pack-quantized"``"""
    sides = [f"{side} {args.describe()}" for side in SIDES if (args := getattr(facts, side)) is not None]
    kind = facts.kind if facts.kind in ("kv_cache", "lm_head") else f"{facts.kind} layer"
    form = [] if facts.format is None else [f"format {facts.format}"]
    return ", ".join([kind, *(sides or ["nothing quantized"]), *form])


def facts_json(facts: LayerFacts) -> dict[str, Any]:
    """A layer's facts as JSON: kind, format and the args of each side in compressed-tensors' spelling."""
    sides = {side: getattr(facts, side) for side in SIDES}
    return {
        "kind": facts.kind,
        "format": facts.format,
        **{side: None if args is None else args.to_json() for side, args in sides.items()},
    }
