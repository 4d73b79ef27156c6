"""The questions that are asked of each rule, and of each declared region."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..domains import Domain
from ..facts import ARGS_FIELDS, LayerFacts
from ..predicates import Box, When
from ..rules.rule import Rule
from ..rules.supported import Supported
from .findings import Finding, finding, listed, placed, words
from .judge import Judge, Spot, irredundant
from .matrix import of_box
from .sweep import Fuel, OutOfFuel, bits

_WITNESSES = 3
#: steps for two rules
_PAIR = 10_000


def about_rule(judge: Judge, index: int, fuel: Fuel, *, in_circle: bool) -> list[Finding]:
    """All findings about rule ``index``. Raises ``OutOfFuel``."""
    rule = judge.rules[index]
    spots = judge.spots(index, fuel)
    if not spots:
        remedy = (
            "compare its fields with what compressed-tensors admits together; take the rule out if it is not needed"
        )
        return [finding("empty-rule", f"rule {placed(rule)} matches no legal layer", rules=[rule], remedy=remedy)]
    found = _boxes(judge, index, spots) + _idle(judge, rule, spots)
    if in_circle:
        return found  # nobody wins there, which the circle's own finding says
    found += _overlaps(judge, index, spots)
    return found + (_shadowed(judge, index, spots) or _redundant(judge, index, spots))


# ----------------------------------------------------------------------------------------------------- one rule's boxes


def _boxes(judge: Judge, index: int, spots: Sequence[Spot]) -> list[Finding]:
    rule = judge.rules[index]
    mine = judge.matrix.of[index]
    total = mine.bit_count()
    first = (mine & -mine).bit_length() - 1
    masks = [spot.cell.mask & mine for spot in spots]
    matched = 0
    for mask in masks:
        matched |= mask
    found = []
    for bit in bits(mine & ~matched):
        text = f"alternative {bit - first + 1} of {total} of rule {placed(rule)} matches no legal layer"
        remedy = f"take it out: {judge.matrix.boxes[bit]}"
        found.append(finding("empty-box", text, rules=[rule], remedy=remedy))
    for bit, by in redundant_boxes(matched, masks):
        spot = next(s for s in spots if s.cell.mask >> bit & 1)
        others = " and ".join(str(other - first + 1) for other in bits(by))
        text = f"alternative {bit - first + 1} of {total} of rule {placed(rule)} adds nothing to {others}"
        remedy = f"take it out: {judge.matrix.boxes[bit]}"
        found.append(finding("redundant-box", text, rules=[rule], remedy=remedy, witnesses=_layers(judge, [spot])))
    return found


def redundant_boxes(boxes: int, masks: Sequence[int]) -> list[tuple[int, int]]:
    """Boxes that could be left out together, the last first, each with an irredundant set of boxes that covers it."""
    left = boxes
    found = []
    for bit in sorted(bits(boxes), reverse=True):
        rest = left & ~(1 << bit)
        needs = [mask & rest for mask in masks if mask >> bit & 1]
        if all(needs):
            left = rest
            found.append((bit, needs))
    return [(bit, irredundant(left, [need & left for need in needs]) or 0) for bit, needs in found]


# --------------------------------------------------------------------------------------------------- rule against rule


def _overlaps(judge: Judge, index: int, spots: Sequence[Spot]) -> list[Finding]:
    seen = 1 << index
    found = []
    for spot in spots:
        if not spot.winners >> index & 1:
            continue
        for other in bits(spot.winners & ~seen):
            seen |= 1 << other
            found.append(_overlap(judge, index, other, _layers(judge, [spot])))
    return found


def _overlap(judge: Judge, index: int, other: int, layers: Sequence[LayerFacts]) -> Finding:
    both = [judge.rules[i] for i in sorted((index, other))]
    text = f"rules {listed(both)} both match {_shown(layers)}, and neither overrides the other"
    remedy = f"let one say overrides=({both[1].name!r},), or let them match different layers"
    return finding("overlap", text, rules=both, remedy=remedy, witnesses=layers)


def pairwise(judge: Judge, index: int, most: int = 3) -> list[Finding]:
    """What can be said of rule ``index`` where its cells are too many to look at: up to ``most`` overlaps.

    Two rules at a time are looked at, and a layer that both match counts if no third one decides there.
    """
    mine, matrix = judge.matrix.of[index], judge.matrix
    meeting = 0
    for bit in bits(mine):
        meeting |= matrix.meeting(1 << bit)
    found: list[Finding] = []
    for other in sorted(judge.owners(meeting) - {index}):
        if len(found) == most:
            break
        both = 1 << index | 1 << other
        if judge.beaters[index] >> other & 1 or judge.beaters[other] >> index & 1:
            continue
        try:
            cells = matrix.cells(mine, Fuel(_PAIR), mine | matrix.of[other])
        except OutOfFuel:
            continue
        for cell in cells:
            if cell.mask & matrix.of[other] and judge.spot(cell.facts).winners & both == both:
                found.append(_overlap(judge, index, other, [cell.facts]))
                break
    return found


def _idle(judge: Judge, rule: Rule, spots: Sequence[Spot]) -> list[Finding]:
    met = 0
    for spot in spots:
        met |= spot.rules
    found = []
    for other, candidate in enumerate(judge.rules):
        if candidate.name in rule.overrides and candidate is not rule and not met >> other & 1:
            text = f"rule {placed(rule)} overrides {placed(candidate)}, but no legal layer matches both"
            found.append(finding("idle-override", text, rules=[rule, candidate], remedy="take the override out"))
    return found


def blockers(judge: Judge, index: int, spot: Spot) -> int:
    """Who keeps rule ``index`` from winning there: those that override it, else those it is in conflict with."""
    return judge.beaters[index] & spot.rules or spot.winners & ~(1 << index)


def shadowing(judge: Judge, index: int, spots: Sequence[Spot]) -> int | None:
    """An irredundant set of rules because of which rule ``index`` never wins; ``None`` when it wins somewhere.

    Where an undeclared overlap keeps it from winning, the overlapping rules count as well; a rule that nobody overrides
    is not shadowed, it only overlaps.
    """
    needs = [blockers(judge, index, spot) for spot in spots]
    if not all(needs) or not any(judge.beaters[index] & spot.rules for spot in spots):
        return None
    candidates = 0
    for need in needs:
        candidates |= need
    return irredundant(candidates, needs)


def _shadowed(judge: Judge, index: int, spots: Sequence[Spot]) -> list[Finding]:
    by = shadowing(judge, index, spots)
    if by is None:
        return []
    rule, others = judge.rules[index], judge.names(by)
    # one spot a shadowing rule: without that rule this one would win there
    chosen = [next(s for s in spots if blockers(judge, index, s) & by == 1 << i) for i in bits(by)]
    layers = _layers(judge, chosen[:_WITNESSES])
    text = f"rule {placed(rule)} never wins: all that it matches goes to {listed(others)}"
    remedy = "take it out, or let it match what they leave"
    # a plugin may well take over all of a rule that it did not write
    foreign = all(other.distribution != rule.distribution for other in others)
    severity = "warning" if foreign else None
    return [finding("shadowed-rule", text, rules=[rule, *others], remedy=remedy, witnesses=layers, severity=severity)]


def redundant(judge: Judge, index: int, spots: Sequence[Spot]) -> bool:
    """Does every layer have the same outcome without rule ``index``?"""
    bit = 1 << index
    return all(judge.outcome(s.winners) == judge.outcome(judge.winners(s.rules & ~bit)) for s in spots)


def _redundant(judge: Judge, index: int, spots: Sequence[Spot]) -> list[Finding]:
    if not redundant(judge, index, spots):
        return []
    bit = 1 << index
    won = [spot for spot in spots if spot.winners == bit] or list(spots)
    heirs = 0
    for spot in won:
        heirs |= judge.winners(spot.rules & ~bit)
    rule, others = judge.rules[index], judge.names(heirs)
    text = f"without rule {placed(rule)} its layers have the same scheme, {rule.scheme}, through {listed(others)}"
    layers = _layers(judge, won[:1])
    return [finding("redundant-rule", text, rules=[rule, *others], remedy="take it out", witnesses=layers)]


# --------------------------------------------------------------------------------------------------------- the region


def about_region(judge: Judge, index: int, region: Supported, fuel: Fuel) -> list[Finding]:
    """What rules leave of the declared region that is predicate ``index``. Raises ``OutOfFuel``."""
    spots = judge.spots(index, fuel)
    holes = [spot for spot in spots if not spot.rules]
    if not holes:
        return []
    count, total = (sum(spot.cell.count for spot in some) for some in (holes, spots))
    layers = list(_different_holes(judge, region, fuel))
    text = f"{count} of {total} layers tried of the supported region {region.name!r} have no rule: {_shown(layers)}"
    remedy = "add a rule for them, or take them out of the declared region"
    return [finding("gap", text, remedy=remedy, witnesses=layers, count=count)]


#: what makes two holes worth showing both, the coarse difference first; at last any difference will do
_LOOK_ALIKE = (
    ("weights.type", "weights.num_bits", "weights.strategy", "inputs", "inputs.strategy", "outputs"),
    ("kind", "format", *(f"{side}.{field}" for side in ("weights", "inputs") for field in ARGS_FIELDS)),
)


def _different_holes(judge: Judge, region: Supported, fuel: Fuel) -> Iterator[LayerFacts]:
    """Up to three layers of a region without a rule, as different as they come."""
    seen: list[LayerFacts] = []
    for fields in _LOOK_ALIKE:
        while len(seen) < _WITNESSES:
            like = [_like(facts, fields) for facts in seen]
            again = Judge(judge.rules, judge.matrix.universe, [region.predicate, *like])
            known = sum(again.matrix.of[len(judge.rules) + 1 :])
            spots = again.spots(len(judge.rules), fuel)
            hole = next((s for s in spots if not s.rules and not s.cell.mask & known), None)
            facts = None if hole is None else again.witness(hole)
            if facts is None:
                break
            seen.append(facts)
            yield facts


def _like(facts: LayerFacts, fields: Sequence[str]) -> When:
    """Layers with the same values in ``fields``."""
    return of_box(Box(tuple((name, Domain(frozenset({facts.flat[name]}))) for name in sorted(fields))))


def _layers(judge: Judge, spots: Sequence[Spot]) -> list[LayerFacts]:
    return [facts for spot in spots if (facts := judge.witness(spot)) is not None]


def _shown(layers: Sequence[LayerFacts]) -> str:
    return "; ".join(map(words, layers))
