"""Choosing configs: where a kernel is launched, and when somebody asks for them to be measured.

Each family of kernels says what its configs are; a launch asks its :class:`Family` for one and gets what was measured
for the task, or the default. :func:`tune` runs a call, sees which choices it makes, and measures their candidates.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ...registry.errors import QuantDispatchError
from . import autotune
from .launch import Device, device_at

C = TypeVar("C")
#: relative norm by which results of two configs may differ: sums in another order, 16-bit weights or exact ones
_ALIKE = 2e-2


class Family(Generic[C]):
    """``kind``: the dataclass of the configs. Of what a task depends on (hashable): ``task`` its text, which is the
    entry's key; of that behind the device: ``default``, and ``candidates``, every one of which is valid there."""

    def __init__(
        self,
        name: str,
        kind: type[C],
        task: Callable[..., str],
        default: Callable[..., C],
        candidates: Callable[..., list[C]],
    ) -> None:
        self.name, self.kind = name, kind
        self.default, self.candidates = default, candidates
        self._task = task

    def task(self, *args: Hashable) -> str:
        return f"{self.name} {self._task(*args)}"

    def choice(self, index: int, *args: Hashable) -> C:
        """For a launch on the ``index``-th device. Nothing is measured here, and after a first time nothing is read."""
        trial: Trial | None = getattr(_here, "trial", None)
        chosen: C = _settled(self, index, args) if trial is None else trial.choice(self, index, args)
        return chosen


@lru_cache(maxsize=8192)
def _settled(family: Family[Any], index: int, args: tuple[Hashable, ...]) -> Any:
    device = device_at(index)
    found = autotune.choices(device.key).get(family.task(*args), family.kind)
    if found is not None:
        # the file may have been edited, or made by a processor with other parts switched off
        for one in family.candidates(device, *args):
            if one == found:
                return one
    return family.default(device, *args)


def forget() -> None:
    """Look again, after entries were written."""
    _settled.cache_clear()


@dataclass(frozen=True, eq=False)
class Site:
    """A choice that a call makes."""

    family: Family[Any]
    index: int
    args: tuple[Hashable, ...]

    @property
    def device(self) -> Device:
        return device_at(self.index)

    @property
    def task(self) -> str:
        return self.family.task(*self.args)


class Trial:
    """Other configs than usual for calls of this thread, and the choices that were made: by family and arguments."""

    def __init__(self) -> None:
        self.sites: dict[tuple[Any, ...], Site] = {}
        self.tried: dict[tuple[Any, ...], Any] = {}
        self.forced: dict[Family[Any], Any] = {}

    def choice(self, family: Family[Any], index: int, args: tuple[Hashable, ...]) -> Any:
        key = (family, index, args)
        self.sites.setdefault(key, Site(family, index, args))
        if family in self.forced:
            return self.forced[family]
        return self.tried[key] if key in self.tried else _settled(family, index, args)


# of each thread: what one thread tries is not what another one's calls should run
_here = threading.local()


@contextmanager
def trying() -> Iterator[Trial]:
    """A trial of this thread, to be changed while it lasts. Inside of another one: that one."""
    outer: Trial | None = getattr(_here, "trial", None)
    _here.trial = trial = Trial() if outer is None else outer
    try:
        yield trial
    finally:
        _here.trial = outer


@contextmanager
def forced(family: Family[C], config: C) -> Iterator[None]:
    """Use this config for all tasks of a family, whatever was measured."""
    with trying() as trial:
        before = trial.forced.get(family)
        trial.forced[family] = config
        try:
            yield
        finally:
            trial.forced.pop(family)
            if before is not None:
                trial.forced[family] = before


@dataclass(frozen=True)
class Tuned:
    """``times``: seconds of the whole call by config, the default first; ``refused``: config to what kept it from
    being taken."""

    task: str
    device: str
    best: Any
    times: dict[Any, float]
    refused: dict[Any, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        figures = [{"config": str(one), "seconds": took} for one, took in self.times.items()]
        refused = {str(one): reason for one, reason in self.refused.items()}
        return {"task": self.task, "best": str(self.best), "figures": figures, "refused": refused}


def tune(
    call: Callable[[], object],
    measure: Callable[[Callable[[], object]], float],
    *,
    go_on: Callable[[], bool] = lambda: True,
    again: bool = False,
) -> list[Tuned]:
    """Measure the candidates of every choice that ``call`` makes, one choice after another, and keep the best of each.

    ``measure``: seconds that the call takes, with whatever is chosen while it runs. ``go_on``: asked before each task
    and before each candidate from the third on; without time, what was measured so far decides. ``again``: also tasks
    that have an entry. A candidate that does not run, or whose result is not the default's, is not taken.

    Raises ``QuantDispatchError`` while a CUDA graph is captured or torch.compile traces, where nothing can be measured,
    and ``RuntimeError`` when no candidate of a task runs.
    """
    _refuse_inside_of_graphs()
    found: list[Tuned] = []
    done: set[tuple[Any, ...]] = set()
    with trying() as trial:
        while True:
            trial.sites.clear()
            expected = call()
            # a choice may change which others there are, so the call is looked at anew after each
            key, site = next((item for item in trial.sites.items() if item[0] not in done), (None, None))
            if key is None or site is None:
                break
            done.add(key)
            configs = site.family.candidates(site.device, *site.args)
            if len(configs) > 1 and (again or _entry(site) not in configs) and go_on():
                found.append(_tune_one(trial, key, site, configs, call, expected, measure, go_on))
    return found


def _refuse_inside_of_graphs() -> None:
    capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    if capturing or torch.compiler.is_compiling():
        raise QuantDispatchError(
            "configs are not measured while a CUDA graph is captured or torch.compile traces",
            field="autotune",
            observed="a capture" if capturing else "torch.compile",
            required="plain calls",
            remedy="measure before, and capture or compile then",
            code="QD804",
        )


def _entry(site: Site) -> Any:
    return autotune.choices(site.device.key).get(site.task, site.family.kind)


def _tune_one(
    trial: Trial,
    key: tuple[Any, ...],
    site: Site,
    configs: list[Any],
    call: Callable[[], object],
    expected: object,
    measure: Callable[[Callable[[], object]], float],
    go_on: Callable[[], bool],
) -> Tuned:
    refused: dict[Any, str] = {}
    # results that share memory with what the next call writes would compare equal to anything
    expected = expected.clone() if isinstance(expected, Tensor) else expected

    def offered() -> Iterator[Any]:
        for number, config in enumerate(configs):
            if number > 1 and not go_on():
                return
            yield config

    def one(config: Any) -> float:
        trial.tried[key] = config
        try:
            if not _alike(call(), expected):
                raise ValueError("its result is not the default's")
            return measure(call)
        except Exception as error:  # too much shared memory, say: the others are measured all the same
            refused[config] = f"{type(error).__name__}: {str(error)[:200]}"
            return float("inf")
        finally:
            del trial.tried[key]

    best, times = autotune.tune(autotune.choices(site.device.key), site.task, offered(), one)
    forget()
    measured = {config: took for config, took in times.items() if took != float("inf")}
    return Tuned(site.task, site.device.key, best, measured, refused)


def _alike(result: object, expected: object) -> bool:
    """Where results are tensors. Infinities and NaN have to be where they were."""
    if not isinstance(result, Tensor) or not isinstance(expected, Tensor):
        return True
    finite = expected.isfinite()
    if result.shape != expected.shape or not torch.equal(result.isfinite(), finite):
        return False
    known, other = (torch.where(finite, t, 0).double() for t in (expected, result))
    return bool((other - known).norm() <= _ALIKE * known.norm().clamp(min=torch.finfo(torch.float32).tiny))
