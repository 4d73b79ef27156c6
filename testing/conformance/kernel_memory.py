"""What is asked of a kernel's memory: results are its caller's, inputs are not kept, nothing unwritten is read."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from .checks import Checks, Nonconformance, NotApplicable
from .layers import Layer
from .trial import same_bits

if TYPE_CHECKING:
    from .backend import BackendConformance

CHECKS = Checks()
#: what allocators and layouts may round up
_ROUNDED = 1 << 16


@CHECKS("lifecycle/results", "sample", since="1.1")
def results(subject: BackendConformance, part: str, layer: Layer) -> None:
    """A result is its caller's: it shares no memory with the input or the state, and the next call leaves it alone."""
    trial = subject.trial(layer, part)
    impl = trial.impl(subject.records[part])
    state, x = trial.pack(impl), trial.inputs()
    y = trial.apply(impl, x, state)
    kept = y.clone()
    for name, other in {"the input": x, **{f"the state's {name}": value for name, value in state.items()}}.items():
        if other.numel() and other.untyped_storage().data_ptr() == y.untyped_storage().data_ptr():
            raise Nonconformance(f"the result lies in the memory of {name}")
    trial.apply(impl, trial.inputs(seed=1), state)
    if not same_bits(y.cpu(), kept.cpu()):
        raise Nonconformance("the next call changes an earlier result: the memory of results is used again")


@CHECKS("lifecycle/lets-go", "sample", since="1.1")
def lets_go(subject: BackendConformance, part: str, layer: Layer) -> None:
    """Inputs and results are not kept when their caller lets them go: a model has many layers."""
    trial = subject.trial(layer, part)
    impl = trial.impl(subject.records[part])
    state = trial.pack(impl)
    seen = weakref.ref(x := trial.inputs()), weakref.ref(y := trial.apply(impl, x, state))
    del x, y
    gc.collect()
    held = [name for name, ref in zip(("the input", "the result"), seen, strict=True) if ref() is not None]
    if held:
        raise Nonconformance(f"{' and '.join(held)} of a call that is over is still held")


@CHECKS("lifecycle/storage", "sample", since="1.1")
def storage(subject: BackendConformance, part: str, layer: Layer) -> None:
    """The state's tensors hold no more memory than they show: a view keeps alive all of what it is a view of."""
    trial = subject.trial(layer, part)
    state = trial.pack(trial.impl(subject.records[part]))
    shown = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    whole = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in state.values()}
    if sum(whole.values()) > 1.1 * shown + _ROUNDED:
        raise Nonconformance(f"the state shows {shown} bytes and holds {sum(whole.values())}: is it a view?")


@CHECKS("numerics/written", "sample", since="1.1")
def written(subject: BackendConformance, part: str, layer: Layer) -> None:
    """Every number of a result was written: with new memory full of NaN it is the same as without."""
    trial = subject.trial(layer, part)
    if torch.device(trial.device).type != "cpu":
        raise NotApplicable("torch fills new memory where the tensors are on the CPU")
    impl = trial.impl(subject.records[part])
    state = trial.pack(impl)
    for rows in (1, 5):
        x = trial.inputs(rows)
        with _filled():
            y = trial.apply(impl, x, state)
        if not bool(y.isfinite().all()):
            raise Nonconformance(f"memory is read that nobody has written: NaN in the result of {rows} rows")
        trial.compare(x, y, f"{rows} rows, with new memory full of NaN: is memory read that nobody has written?")


@contextmanager
def _filled() -> Iterator[None]:
    """Inside, tensors that torch makes without values hold NaN, or the largest integer."""
    before: dict[str, Any] = {
        "mode": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
    }
    switches: Any = torch.utils.deterministic  # its attribute is put there by a module that type checkers cannot read
    fills = switches.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    switches.fill_uninitialized_memory = True
    try:
        yield
    finally:
        switches.fill_uninitialized_memory = fills
        torch.use_deterministic_algorithms(**before)
