"""The record of ``cpu/native_dense``."""

from __future__ import annotations

from collections.abc import Iterator

from ....registry.domains import not_in
from ....registry.kernels import Absent, Kernel, Needs


def kernels() -> Iterator[Kernel]:
    here = "quantdispatch.backends.cpu.native.dense"
    fields = {"dtype": "bfloat16", "isa.avx2": True, "package.quantdispatch-native": not_in({Absent})}
    yield Kernel(
        name="cpu/native_dense",
        op="dense",
        rank=100,
        requires=Needs(fields, device="cpu", kind={"linear", "lm_head"}),
        target=f"{here}:NativeDense",
        probe=f"{here}:probe",
    )
