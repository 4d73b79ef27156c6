"""Whatever a config is, ``plan()`` gives a plan or a typed error of one printable line, soon and in little memory.

The seed is in every failure: ``RandomConfigs(seed)`` gives the same configs again. 3,000 in every run, 100,000 where
slow tests run.
"""

from __future__ import annotations

import itertools
import json
import random
import resource
import time
from pathlib import Path
from typing import Any

import pytest
import random_configs
from random_configs import RandomConfigs

from quantdispatch import QuantDispatchError, plan
from quantdispatch.registry.registry import get_registry

MOST_SECONDS = 1.0
MOST_BYTES = 500 * 2**20
SEED = 20250131


def check(seed: int, count: int) -> dict[str, int]:
    """Plans ``count`` configs of ``seed``; how many came to what."""
    get_registry()
    outcomes: dict[str, int] = {}
    for number, (how, raw) in enumerate(itertools.islice(iter(RandomConfigs(seed)), count)):
        outcome = planned(raw, f"seed {seed}, config {number} ({how})", as_json=number % 10 == 0)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert used < MOST_BYTES, f"seed {seed}: {used / 2**20:.0f} MiB"
    return outcomes


def planned(source: Any, where: str, *, as_json: bool = True) -> str:
    start = time.process_time()
    try:
        result = plan(source, strict=False)
        errors = list(result.errors)
        spent = time.process_time() - start
        outcome = "failing layers" if errors else "plan"
        if as_json and len(result.layers) < 300:  # the JSON of a plan repeats each layer's trace
            json.dumps(result.to_json()).encode()
    except QuantDispatchError as error:
        spent = time.process_time() - start
        errors, outcome = [error], type(error).__name__
    except BaseException as error:
        raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error
    for error in errors[:50]:
        line = str(error)
        assert line and line.encode() and "\n" not in line and "\0" not in line, f"{where}: {line!r}"
    assert spent < MOST_SECONDS, f"{where}: {spent:.2f} s"
    return outcome


@pytest.mark.parametrize("part", range(5))
def test_three_thousand(part: int) -> None:
    outcomes = check(SEED + part, 600)
    # none of the ways to end is so rare that nothing would be tested
    assert min(outcomes[name] for name in ("plan", "failing layers", "ConfigError")) > 40, outcomes


def test_another_three_hundred_each_time() -> None:
    check(random.SystemRandom().getrandbits(32), 300)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_a_hundred_thousand(part: int) -> None:
    check(1000 + part, 10_000)


def test_texts(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    path = tmp_path / "config.json"
    for number in range(400):
        path.write_text(random_configs.text(rng), encoding="utf-8", errors="surrogatepass")
        planned(path, f"seed {SEED}, text {number}")


def test_the_same_seed_gives_the_same_configs() -> None:
    first, second = ([repr(raw) for _, raw in itertools.islice(RandomConfigs(7), 200)] for _ in range(2))
    strip = [text for text in first if "object at" not in text]
    assert strip == [text for text in second if "object at" not in text] and len(strip) > 100
