"""Measured configs, kept in a file from one process to the next.

Nothing is measured behind anyone's back: a product asks :func:`chosen`, which only looks; :func:`tune` measures, and is
called by ``quantdispatch bench`` and by ``benchmarks/gpu_check.py``. The file's key holds all that a figure depends on:
the form of the entries, Triton's version, the sources of the kernels, and the device's name; an entry's, the task.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import triton

from .config import Config

#: of the file's form: raised when entries change their meaning
SCHEMA = 1
#: folder of the file, instead of the user's cache folder
FOLDER = "QUANTDISPATCH_CACHE"


def folder() -> Path:
    given = os.environ.get(FOLDER)
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quantdispatch"


@cache
def version() -> str:
    """Of what entries mean and were measured with."""
    sources = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem.endswith(("kernel", "kernels")) or path.stem in ("assembly", "decode"):
            sources.update(path.read_bytes())
    return f"{SCHEMA}-{triton.__version__}-{sources.hexdigest()[:12]}"


class Choices:
    """One device's measured configs, by task. Reads its file once; a file that is no such file counts as empty."""

    def __init__(self, device: str, path: Path | None = None) -> None:
        self.device = device
        self.path = path or folder() / "triton-configs.json"
        self._entries: dict[str, Config] | None = None

    def get(self, task: str) -> Config | None:
        if self._entries is None:
            self._entries = dict(_configs(self._read().get(self._key, {})))
        return self._entries.get(task)

    def put(self, task: str, config: Config) -> None:
        """Keeps what other processes have put there; a reader sees the old file or the new, never a part of one."""
        self.get(task)
        assert self._entries is not None
        self._entries[task] = config
        everything = self._read()
        everything.setdefault(self._key, {})[task] = config.to_json()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=self.path.name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(everything, file, indent=1, sort_keys=True)
            os.replace(temporary, self.path)
        except BaseException:
            os.unlink(temporary)
            raise

    @property
    def _key(self) -> str:
        return f"{version()} {self.device}"

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) and all(isinstance(v, dict) for v in found.values()) else {}


def _configs(entries: dict[str, Any]) -> Iterator[tuple[str, Config]]:
    """Those of the entries that are configs: anyone may have edited the file."""
    for name, fields in entries.items():
        if isinstance(fields, dict) and fields.keys() == Config(1, 1).to_json().keys():
            yield name, Config(**fields)


@cache
def choices(device: str) -> Choices:
    return Choices(device)


def chosen(device: str, task: str) -> Config | None:
    """What was measured best for ``task`` on the device of that name, or ``None``."""
    return choices(device).get(task)


def tune(
    table: Choices, task: str, configs: Iterable[Config], measure: Callable[[Config], float]
) -> tuple[Config, dict[Config, float]]:
    """Measure each config (seconds; infinite where it does not run), keep the best, return it with all figures.

    Raises ``RuntimeError`` when none runs.
    """
    times = {config: measure(config) for config in configs}
    best = min(times, key=lambda config: times[config], default=None)
    if best is None or times[best] == float("inf"):
        raise RuntimeError(f"no config of {task} runs on {table.device}")
    table.put(task, best)
    return best, times
