"""Launching: on the device where the tensors are, and what is known of it without asking it every time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from ...registry import gpus
from .compat import INTERPRETED


def device_of(x: Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current device; this makes x's the current one where it is not."""
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        return torch.cuda.device(x.device)
    return nullcontext()


def runs_on(x: Tensor) -> bool:
    """Can kernels read this tensor? Interpreted ones read the CPU's."""
    return x.is_cuda or INTERPRETED


@cache
def family_of(index: int) -> str:
    """The family (``registry.gpus``) of the ``index``-th device: ``"sm90"``, ``"gfx942"``; ``"interpreter"`` for -1."""
    if index < 0:
        return "interpreter"
    if torch.version.hip:
        return str(torch.cuda.get_device_properties(index).gcnArchName).partition(":")[0]
    major, minor = torch.cuda.get_device_capability(index)
    return gpus.family_of(f"sm{major}{minor}")


def family(x: Tensor) -> str:
    """Of the device that x is on."""
    return family_of(x.device.index if x.is_cuda else -1)


@cache
def processors(index: int) -> int:
    """How many programs run at once at least; 4 in the interpreter, so that tests split small work too."""
    return 4 if index < 0 else int(torch.cuda.get_device_properties(index).multi_processor_count)


@cache
def device_name(index: int) -> str:
    """As the driver spells it."""
    return "interpreter" if index < 0 else torch.cuda.get_device_name(index)


@dataclass(frozen=True)
class Device:
    """What configs depend on. ``key``: the name and the capability, for keys of what was measured."""

    family: str
    processors: int
    key: str


@cache
def device_at(index: int) -> Device:
    """The ``index``-th device; -1: the interpreter."""
    if index < 0:
        capability = "on the CPU"
    elif torch.version.hip:
        capability = family_of(index)
    else:
        capability = "sm{}{}".format(*torch.cuda.get_device_capability(index))
    return Device(family_of(index), processors(index), f"{device_name(index)} {capability}")


HALVES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}


def index_of(x: Tensor) -> int:
    return x.device.index if x.is_cuda else -1


def eager_or_op(function: Callable[..., Tensor], op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function itself in eager mode, where an operator's dispatch costs microseconds, and the op when compiled."""

    def choose(*args: object) -> Tensor:
        return op(*args) if torch.compiler.is_compiling() else function(*args)

    return choose
