"""The fuzz targets: every seed is fine, and whoever plants a fault in the package sees its target report it."""

from __future__ import annotations

import importlib
import importlib.util
import random
import re
import subprocess
import sys
from pathlib import Path

import fuzzing
import pytest

sys.path.insert(0, str(Path(__file__).parent))
run = importlib.import_module("run")

SEEDS = [(name, seed) for name in run.TARGETS for seed in fuzzing.seeds(name)]
needs_atheris = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="no atheris: it has wheels for Python 3.11 to 3.13 on Linux, x86-64",
)
RAISING = "def planted(*args, **more): raise KeyError('planted')"
#: faults that no seed meets, planted in what a module of the registry calls; and a word of the report
FAULTS = {
    "config": ("config_groups", f"{RAISING}\nmodule.wrong = planted", "KeyError: 'planted'"),
    "headers": ("headers", f"{RAISING}\nmodule._bad_offsets = planted", "KeyError: 'planted'"),
    "headers, wrongly read": ("headers", "module._check_gaps = lambda *rows: None", "Unacceptable: "),
    "patterns": ("patterns", f"{RAISING}\nmodule.Pattern._invalid = planted", "KeyError: 'planted'"),
}


def test_there_are_targets_with_seeds() -> None:
    assert {name for name, _ in SEEDS} == set(run.TARGETS) == {"config", "headers", "patterns"}


@pytest.mark.parametrize(("name", "seed"), SEEDS, ids=[f"{name}-{seed.name}" for name, seed in SEEDS])
def test_seeds(name: str, seed: Path) -> None:
    fuzzing.bounded(importlib.import_module(f"fuzz_{name}").check)(seed.read_bytes())


@needs_atheris
@pytest.mark.parametrize(("name", "fault"), [(key.split(",")[0], fault) for key, fault in FAULTS.items()], ids=FAULTS)
def test_a_planted_fault_is_found(name: str, fault: tuple[str, str, str], tmp_path: Path) -> None:
    module, plant, said = fault
    arguments = [*run.options(name, tmp_path, seconds=120, seed=1), "-runs=20000"]
    before = f"import quantdispatch.registry.{module} as module\n{plant}"
    command = run.command(name, *arguments, before=before)
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    assert done.returncode != 0 and said in done.stdout + done.stderr, done.stdout + done.stderr
    assert list(tmp_path.glob("crash-*"))


HARM = {
    "time": ("fuzzing.MOST_SECONDS = 0.2", "sum(range(10**8))", r"took [\d.]+ s"),
    "memory": ("fuzzing.MOST_BYTES = 2**25", "bytearray(2**26).decode('latin-1')", r"took \d+ MiB"),
}


@pytest.mark.parametrize(("limit", "work", "said"), HARM.values(), ids=HARM)
def test_time_and_memory_are_bounded(limit: str, work: str, said: str) -> None:
    """In a process of its own: what one takes at most is not to be seen where more was taken before."""
    code = f"import sys; sys.path[:0] = {[str(run.HERE.parent / 'support')]}; import fuzzing; {limit}"
    command = [sys.executable, "-c", f"{code}; fuzzing.bounded(lambda data: {work})(b'')"]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert done.returncode == 1 and re.search(f"fuzzing.Unacceptable: {said}", done.stderr), done.stderr


def test_mutations_give_other_documents() -> None:
    document = fuzzing.seeds("config")[0].read_bytes()
    mutate = importlib.import_module("fuzz_config").mutate
    made = {fuzzing.mutated(document, random.Random(seed), mutate) for seed in range(200)}
    assert len(made) > 150
    assert fuzzing.mutated(b"no JSON", random.Random(0), mutate) is None
