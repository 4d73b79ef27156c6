"""Whatever a config is, ``plan()`` gives a plan or a typed error of one printable line, soon and in little memory.

The seed is in every failure: ``RandomConfigs(seed)`` gives the same configs again. 3,000 in every run, 100,000 where
slow tests run.
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from pathlib import Path

import plan_fuzzing
import pytest
import random_configs
from plan_fuzzing import planned
from random_configs import RandomConfigs

SEED = 20250131


def check(seed: int, count: int) -> dict[str, int]:
    """In a process of its own: the peak of memory is that of a whole process, whatever else has run in it."""
    folder = str(Path(plan_fuzzing.__file__).parent)
    code = (
        f"import sys, json; sys.path.insert(0, {folder!r}); import plan_fuzzing; "
        f"print(json.dumps(plan_fuzzing.check({seed}, {count})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    outcomes: dict[str, int] = json.loads(done.stdout)
    return outcomes


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
