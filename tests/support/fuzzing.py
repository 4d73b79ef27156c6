"""What the fuzz targets share: an input may end in an answer or in an error of ours, soon and without much memory.

A target is a file of ``tests/fuzz`` with a function ``check(data)``, and ``mutate(document, chance)`` where it reads
JSON. Coverage-guided fuzzing by atheris calls it with what it makes of the seeds in ``tests/data/fuzz``
(``tests/fuzz/run.py``); ``tests/fuzz/test_targets.py`` calls it with the seeds alone.
"""

from __future__ import annotations

import importlib
import json
import random
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quantdispatch import QuantDispatchError

SEEDS = Path(__file__).parents[1] / "data" / "fuzz"
#: seconds of CPU time: what a plan's regular expressions may take together, twice, and as much for the rest; code that
#: is watched for coverage is several times slower
MOST_SECONDS = 4.0
MOST_BYTES = 256 * 2**20
Check = Callable[[bytes], None]


class Unacceptable(AssertionError):
    """What no input may bring about."""


def bounded(check: Check) -> Check:
    """``check``, which must end soon, take little memory, and raise errors of ours of one printable line at most."""

    def checked(data: bytes) -> None:
        peak, start = _peak_bytes(), time.process_time()
        try:
            check(data)
        except QuantDispatchError as error:
            printable(error)
        spent, grown = time.process_time() - start, _peak_bytes() - peak
        if spent > MOST_SECONDS:
            raise Unacceptable(f"took {spent:.1f} s")
        if grown > MOST_BYTES:
            raise Unacceptable(f"took {grown >> 20} MiB")

    return checked


def printable(error: QuantDispatchError) -> None:
    line = str(error)
    if not line or "\n" in line or "\0" in line or not line.encode("utf-8", "ignore"):
        raise Unacceptable(f"the message of {type(error).__name__} is {line!r}")
    line.encode()  # nor a lone surrogate, which no terminal takes


def _peak_bytes() -> int:
    try:
        # not what getrusage counts: on Linux that begins with the peak of the process that started this one
        status = Path("/proc/self/status").read_bytes()
        return int(status.partition(b"VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def fuzz(name: str, arguments: list[str], before: Callable[[], None] = lambda: None) -> None:
    """Fuzz one target in this process, which libFuzzer ends: status 0 when its time or count in ``arguments`` is over.

    ``before``: called when all is imported, and watched for coverage.
    """
    import atheris

    with atheris.instrument_imports(include=["quantdispatch"]):
        target = importlib.import_module(f"fuzz_{name}")
        for seed in seeds(name):  # much is imported when it is first used
            bounded(target.check)(seed.read_bytes())
    before()
    mutate = getattr(target, "mutate", None)

    def mutator(data: bytes, most: int, seed: int) -> bytes:
        made = mutated(data, random.Random(seed), mutate) if mutate and seed % 4 else None
        return made if made is not None and len(made) <= most else atheris.Mutate(data, most)

    options: dict[str, Any] = {"custom_mutator": mutator} if mutate else {}
    atheris.Setup([name, *arguments], bounded(target.check), **options)
    atheris.Fuzz()


def seeds(name: str) -> list[Path]:
    return sorted(path for path in (SEEDS / name).iterdir() if path.is_file())


def mutated(data: bytes, chance: random.Random, mutate: Callable[[Any, random.Random], Any]) -> bytes | None:
    """The document in ``data`` after a change or a few; ``None`` where there is none."""
    try:
        document = json.loads(data)
        for _ in range(chance.choice((1, 1, 2, 4))):
            document = mutate(document, chance)
        return json.dumps(document).encode()
    except (ValueError, RecursionError):
        return None
