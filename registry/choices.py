"""What ``quantdispatch bench`` measured: of each task of a checkpoint, how long each kernel took on one machine.

A JSON file, ``quantdispatch-choices.json`` beside the checkpoint unless named otherwise. A plan uses it where device
and versions are those that were measured; where they are not, it says so and goes by the usual order.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .environment import Environment
from .errors import ConfigError
from .facts import KernelSpec
from .problem import Problem

FILE = "quantdispatch-choices.json"
VARIABLE = "QUANTDISPATCH_CHOICES"
VERSION = 1
#: facts that must be as they were when it was measured
_SAME = ("device", "arch", "package.torch", "package.triton", "package.vllm", "package.sglang", "threads")
_ON_GPU = tuple(name for name in _SAME if name != "threads")


@dataclass(frozen=True)
class Measured:
    """One task: rows a call to kernel to microseconds."""

    spec: str
    times: Mapping[int, Mapping[str, float]]


@dataclass(frozen=True, eq=False)
class Choices:
    """``path``: for people. ``tasks``: by :func:`task_key`."""

    path: str
    facts: Mapping[str, Any]
    tasks: Mapping[str, Measured]

    def applied(self, spec: KernelSpec, environment: Environment) -> KernelSpec:
        """``spec`` with the kernels that were measured for it, fastest first; as it is where none was."""
        found = self.tasks.get(task_key(spec))
        if found is None:
            return spec
        wanted = max(1, int(environment.facts.get("rows", 1)))
        rows = min(found.times, key=lambda measured: (abs(math.log(measured / wanted)), measured))
        order = sorted(found.times[rows].items(), key=lambda item: (item[1], item[0]))
        listed = ", ".join(f"{name} {time:.4g} us" for name, time in order)
        text = f"measured at {rows} row{'s' if rows != 1 else ''}, {self.path}; {listed}"
        return replace(spec, measured=tuple(name for name, _ in order), measured_by=text)

    def problem(self, environment: Environment) -> Problem | None:
        """What keeps these figures from being used here, or ``None``."""
        here = identity(environment)
        changed = [name for name in here if self.facts.get(name) != here[name]]
        others = [f"{name} was {self.facts.get(name)}, is {here[name]}" for name in changed]
        if not others:
            return None
        return Problem("choices-unused", f"measured elsewhere: {'; '.join(others)}", "note", self.path)

    def to_json(self) -> dict[str, Any]:
        tasks = [
            {"task": json.loads(key), "microseconds": {str(rows): dict(times) for rows, times in one.times.items()}}
            for key, one in sorted(self.tasks.items())
        ]
        return {"version": VERSION, "environment": dict(self.facts), "tasks": tasks}


def task_key(spec: KernelSpec) -> str:
    """What must agree for a time to be that of a task; JSON with sorted keys."""
    sides = {side: None if args is None else args.to_json() for side, args in _sides(spec)}
    task = {
        "op": spec.op, "kind": spec.kind, "scheme": spec.scheme, **sides, "n": spec.n, "k": spec.k, "dtype": spec.dtype,
        "g_idx": spec.has_g_idx, "bias": spec.bias, "allow": sorted(spec.allow),
    }  # fmt: skip
    return json.dumps(task, sort_keys=True)


def _sides(spec: KernelSpec) -> Iterable[tuple[str, Any]]:
    return (("weights", spec.weights), ("inputs", spec.inputs), ("outputs", spec.outputs))


def identity(environment: Environment) -> dict[str, Any]:
    """The facts that figures depend on, as JSON has them."""
    shown = environment.to_json()
    return {name: shown.get(name) for name in (_SAME if environment.device == "cpu" else _ON_GPU)}


def find_choices(given: str | os.PathLike[str] | bool | None, folder: str | None) -> Choices | None:
    """The file named, or by the environment variable, or in the checkpoint's folder; ``False`` for none.

    Raises ``ConfigError`` for one that was named and is not there, and for one that cannot be read.
    """
    if given is False:
        return None
    named = given if given not in (None, True) else os.environ.get(VARIABLE) or None
    if named is not None:
        return read_choices(os.fspath(named))  # type: ignore[arg-type]
    path = Path(folder, FILE) if folder is not None else None
    return read_choices(str(path)) if path is not None and path.is_file() else None


def read_choices(path: str) -> Choices:
    """Raises ``ConfigError`` naming the file and what is wrong with it."""
    try:
        raw = json.loads(Path(path).read_text(encoding="utf-8"))
        if raw["version"] != VERSION:
            raise _unreadable(path, f"version {raw['version']!r}, this release reads {VERSION}")
        tasks = {}
        for entry in raw["tasks"]:
            key = json.dumps(entry["task"], sort_keys=True)
            times = {int(rows): _times(own) for rows, own in entry["microseconds"].items()}
            if not times or min(times) < 1 or not all(times.values()):
                raise _unreadable(path, "a task without times")
            tasks[key] = Measured(key, times)
        return Choices(path, dict(raw["environment"]), tasks)
    except OSError as error:
        raise _unreadable(path, str(error.strerror or error)) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path, f"{type(error).__name__}: {error}") from error


def _times(own: Mapping[str, Any]) -> dict[str, float]:
    times = {str(name): float(time) for name, time in own.items()}
    if not all(math.isfinite(time) and time > 0 for time in times.values()):
        raise ValueError("a time is a positive number of microseconds")
    return times


def write_choices(choices: Choices) -> None:
    """Into its own path, over what is there. Raises ``ConfigError`` where that cannot be written."""
    text = json.dumps(choices.to_json(), indent=1, sort_keys=True) + "\n"
    try:
        Path(choices.path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot write {choices.path}: {error.strerror or error}", field="out", observed=choices.path,
            required="a file that can be written",
            remedy=f"name another file with --out, and give it to plans with choices= or {VARIABLE}", code="QD529",
        ) from error  # fmt: skip


def _unreadable(path: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{path} is no file of measured kernels: {reason}", field="choices", observed=path,
        required=f"a file of version {VERSION} that quantdispatch bench wrote",
        remedy="measure again with quantdispatch bench, or take the file away", code="QD529",
    )  # fmt: skip
