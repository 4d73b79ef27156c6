"""CPU seconds of the static checks of rules: built-in ones, 50 to 400 rules of plugins, a table made to be hard."""

from __future__ import annotations

import itertools
import random
import time
from functools import partial
from typing import Any

from quantdispatch.registry.analysis import check_rules
from quantdispatch.registry.analysis.coverage import coverage
from quantdispatch.registry.domains import at_least, between
from quantdispatch.registry.predicates import Args, When
from quantdispatch.registry.registry import build
from quantdispatch.registry.rules import Rule, builtin_rules
from quantdispatch.registry.rules.supported import SUPPORTED
from quantdispatch.registry.values import ABSENT as Absent

_SCHEME = "quantdispatch.schemes.dense:Dense"
_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "acme-quantized")
_INPUTS: tuple[Any, ...] = (
    Absent,
    Args(num_bits=8, strategy="token"),
    Args(num_bits=8, strategy="tensor"),
    Args(num_bits=8, strategy="group", group_size=between(1, 64)),
    Args(num_bits=8, strategy="group", group_size=at_least(65)),
)


def plugins(number: int) -> list[Rule]:
    """Rules as plugins write them: a few alternatives each, every third a special case that overrides a wider one."""
    rng = random.Random(number)
    grid = list(itertools.product(_FORMATS, (2, 3, 4, 6, 8), ("channel", "group"), _INPUTS))
    rules: list[Rule] = []
    for index in range(number):
        cell = index % len(grid)
        form, bits, strategy, inputs = grid[cell]
        weights: dict[str, Any] = {"num_bits": bits, "strategy": strategy, "dynamic": False}
        # later ones are special cases of what is there, narrower each time
        overrides = tuple(rule.name for rule in rules[cell :: len(grid)])
        if overrides:
            weights |= {"symmetric": bool(rng.getrandbits(1)), "actorder": rng.choice([None, "weight", "static"])}
        when = [When(kind=kind, format=form, weights=Args(**weights), inputs=inputs) for kind in ("linear", "lm_head")]
        rules.append(Rule(f"plugin_{index:03}", when, _SCHEME, overrides=overrides))
    return rules


def hard(number: int) -> list[Rule]:
    """Rules of which any few meet in layers of their own: more cells than anybody can look at."""
    rng = random.Random(number)
    return [
        Rule(
            f"hard_{index:03}",
            When(
                weights=Args(group_size=set(rng.sample(range(1, 400), 200)), num_bits=set(rng.sample(range(200), 100)))
            ),
            _SCHEME,
        )
        for index in range(number)
    ]


def measure(runs: int = 5) -> list[dict[str, Any]]:
    """A row a table, the fastest of ``runs``."""
    tables: dict[str, list[Rule]] = {
        "built in, with the supported region": list(builtin_rules()),
        **{f"{n} rules of plugins": plugins(n) for n in (50, 100, 200, 400)},
        "40 rules made to be hard": hard(40),
    }
    rows = []
    for name, rules in tables.items():
        supported = SUPPORTED if name.startswith("built in") else ()
        seconds, found = _fastest(partial(check_rules, rules, against=(), supported=supported, schemes=False), runs)
        boxes = sum(len(rule.predicate.boxes) for rule in rules)
        undecided = sum(f.count or 0 for f in found if f.name == "not-decided")
        rows.append(
            {
                "table": name,
                "rules": len(rules),
                "alternatives": boxes,
                "findings": len(found),
                "not_decided": undecided,
                "cpu_seconds": seconds,
            }
        )
    registry = build()
    seconds, shares = _fastest(partial(coverage, registry), 2)
    rows.append(
        {"table": "coverage", "rules": len(registry.rules.rules), "findings": len(shares), "cpu_seconds": seconds}
    )
    return rows


def _fastest(call: Any, runs: int) -> tuple[float, Any]:
    times = []
    for _ in range(runs):
        start = time.process_time()
        result = call()
        times.append(time.process_time() - start)
    return min(times), result
