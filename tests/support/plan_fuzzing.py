"""Plans random configs and says how many came to what: see ``test_plan_fuzz.py``."""

from __future__ import annotations

import itertools
import json
import resource
import time
from pathlib import Path
from typing import Any

from random_configs import RandomConfigs

from quantdispatch import QuantDispatchError, plan
from quantdispatch.registry.registry import get_registry

MOST_SECONDS = 1.0
MOST_BYTES = 500 * 2**20


def check(seed: int, count: int) -> dict[str, int]:
    """Plans ``count`` configs of ``seed``; how many came to what."""
    get_registry()
    outcomes: dict[str, int] = {}
    for number, (how, raw) in enumerate(itertools.islice(iter(RandomConfigs(seed)), count)):
        outcome = planned(raw, f"seed {seed}, config {number} ({how})", as_json=number % 10 == 0)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    used = peak_bytes()
    assert used < MOST_BYTES, f"seed {seed}: {used / 2**20:.0f} MiB"
    return outcomes


def peak_bytes() -> int:
    """Of this process alone: what ``getrusage`` tells begins with the process that started it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM"))) * 1024


def planned(source: Any, where: str, *, as_json: bool = True) -> str:
    start = time.process_time()
    try:
        result = plan(source, strict=False)
        errors = list(result.errors)
        spent = time.process_time() - start
        outcome = "failing layers" if errors else "plan"
        if as_json and len(result.layers) < 300:  # the JSON of a plan repeats each layer's trace
            # a dict may hold objects that no JSON has, and a plan shows them as they came
            json.dumps(result.to_json(), default=repr).encode()
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
