"""Measured configs, kept in a file from one process to the next.

Nothing is measured behind anyone's back: a product only looks (:mod:`.tuning`); :func:`.tuning.tune` measures a call
that it is given, and ``benchmarks/gpu_check.py`` those of its layers. The file's key holds all that a figure depends
on: the form of the entries, Triton's version, the sources of the kernels, and the device's name and capability; an
entry's, the family of kernels, the shape and the format.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import triton

from .config import Config

_LOCKS = True
try:
    import fcntl
except ImportError:  # pragma: no cover - Windows, where writers may lose each other's entries, but no file breaks
    _LOCKS = False

C = TypeVar("C")
#: of the file's form: raised when entries change their meaning
SCHEMA = 2
#: folder of the file, instead of the user's cache folder
FOLDER = "QUANTDISPATCH_CACHE"
#: a file of more bytes is none of ours
_MOST_BYTES = 32 << 20
#: seconds to wait for another process that writes; after it we write all the same, and may lose its entry
_PATIENCE = 5.0
#: sources whose figures entries are, beside those named ``*kernel`` and ``*kernels``
_SOURCES = frozenset({"assembly", "decode", "activations_codes", "activations_linear", "activations_product",
                      "activations_small"})  # fmt: skip


def folder() -> Path:
    """Raises ``RuntimeError`` where no folder is named and the user has no home."""
    given = os.environ.get(FOLDER)
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quantdispatch"


@cache
def version() -> str:
    """Of what entries mean and were measured with."""
    sources = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem.endswith(("kernel", "kernels")) or path.stem in _SOURCES:
            sources.update(path.read_bytes())
    return f"{SCHEMA}-{triton.__version__}-{sources.hexdigest()[:12]}"


class Choices:
    """One device's measured configs, by task. Reads its file once; a file that cannot be read or is no such file counts
    as empty, and where none can be written entries are this process's own."""

    def __init__(self, device: str, path: Path | None = None) -> None:
        self.device = device
        self._path = path
        #: why the last entry is in no file, empty if it is in one
        self.unwritten = ""
        self._entries: dict[str, Any] | None = None
        self._lock = threading.Lock()

    @property
    def path(self) -> Path:
        return self._path or folder() / "triton-configs.json"

    def get(self, task: str, kind: type[C] = Config) -> C | None:  # type: ignore[assignment]
        """The config, a dataclass ``kind``; ``None`` where there is none, or one of another form. Anyone may have
        edited the file: whether the config suits the task is for the caller to see."""
        with self._lock:
            found = self._load().get(task)
        names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
        return kind(**found) if isinstance(found, dict) and found.keys() == names else None

    def put(self, task: str, config: Any) -> None:
        """Keeps what other processes have put there; a reader sees the old file or the new, never a part of one. Where
        none can be written ``unwritten`` says why."""
        entry = asdict(config)
        with self._lock:
            self._load()[task] = entry
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _alone(self.path.parent):
                everything = self._read()
                everything.setdefault(self._key, {})[task] = entry
                _replace(self.path, everything)
        except (OSError, RuntimeError) as error:
            self.unwritten = f"{type(error).__name__}: {error}"
        else:
            self.unwritten = ""

    @property
    def _key(self) -> str:
        return f"{version()} {self.device}"

    def _load(self) -> dict[str, Any]:
        if self._entries is None:
            self._entries = dict(self._read().get(self._key, {}))
        return self._entries

    def _read(self) -> dict[str, Any]:
        try:
            # a pipe would be waited for
            if not self.path.is_file() or self.path.stat().st_size > _MOST_BYTES:
                return {}
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RuntimeError):  # the last: no home, or nested too deeply
            return {}
        return found if isinstance(found, dict) and all(isinstance(v, dict) for v in found.values()) else {}


def _replace(path: Path, document: dict[str, Any]) -> None:
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(f"{path} is read-only")  # to be kept as it is, though its folder would let us
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1, sort_keys=True)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Between processes, as far as the file system knows locks. The folder is locked: a file would be left behind."""
    if not _LOCKS:
        yield
        return
    handle = os.open(place, os.O_RDONLY)
    try:
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                break  # no locks here
            else:
                break
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


@cache
def choices(device: str) -> Choices:
    """``device``: its name and capability, of :func:`.launch.device_at`."""
    return Choices(device)


def tune(table: Choices, task: str, configs: Iterable[C], measure: Callable[[C], float]) -> tuple[C, dict[C, float]]:
    """Measure each config (seconds; infinite where it does not run), keep the best, return it with all figures.

    Raises ``RuntimeError`` when none runs.
    """
    times = {config: measure(config) for config in configs}
    best = min(times, key=lambda config: times[config], default=None)
    if best is None or times[best] == float("inf"):
        raise RuntimeError(f"no config of {task} runs on {table.device}")
    table.put(task, best)
    return best, times
