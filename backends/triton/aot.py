"""Kernels compiled ahead of time, with no device: which matrix instructions, how much shared memory, what is spilled.

What a kernel module wants looked at it says in a function ``aot_cases()``; :data:`MODULES` lists the modules. The table
in docs/triton.md is made of :func:`report` of all of them.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import triton

from .compat import compile_for

_PACKAGE = __name__.rpartition(".")[0]
#: modules with an ``aot_cases()``
MODULES = ("wna16_aot", "scaled_aot", "quantized_aot")
#: classes of matrix instructions by how they are spelled in PTX and in AMD's assembly
INSTRUCTIONS = {
    "tcgen05": re.compile(r"\btcgen05\.mma\b(?!\S*block_scale)"),
    "tcgen05 scaled": re.compile(r"\btcgen05\.mma\.\S*block_scale"),
    "wgmma": re.compile(r"\bwgmma\.mma_async\b"),
    "mma": re.compile(r"\bmma\.sync\b(?!\S*block_scale)"),
    "mma scaled": re.compile(r"\bmma\.sync\.\S*block_scale"),
    "mfma": re.compile(r"\bv_mfma_\w+"),
}
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+)")
_AMD = {"registers": r"\.vgpr_count:\s+(\d+)", "spilled": r"\.vgpr_spill_count:\s+(\d+)"}


@dataclass(frozen=True)
class Case:
    """A kernel as one launch would compile it. ``expects``: the class of matrix instruction, ``None`` for a kernel
    without. ``common``: among the few that every run of CI compiles."""

    name: str
    family: str
    function: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    divisible: frozenset[str]
    warps: int
    stages: int
    expects: str | None
    common: bool = False

    @property
    def id(self) -> str:
        return f"{self.family} {self.name}"


@dataclass(frozen=True)
class Report:
    """``instructions``: how many of each class stand in the code. ``registers`` a thread; ``spilled``: bytes of local
    memory a thread (registers on AMD); ``shared``: bytes a program."""

    case: Case
    instructions: Mapping[str, int]
    registers: int
    spilled: int
    shared: int


def cases() -> Iterator[Case]:
    """Of all kernels."""
    for module in MODULES:
        yield from import_module(f"{_PACKAGE}.{module}").aot_cases()


def report(case: Case) -> Report:
    """Compile it. Raises Triton's errors; some ten seconds at worst."""
    compiled = compile_for(
        case.family,
        case.function,
        case.signature,
        case.constants,
        divisible=case.divisible,
        warps=case.warps,
        stages=case.stages,
    )
    text = compiled.asm["amdgcn" if "amdgcn" in compiled.asm else "ptx"]
    found = {name: len(pattern.findall(text)) for name, pattern in INSTRUCTIONS.items()}
    if "amdgcn" in compiled.asm:
        registers, spilled = (int(re.search(_AMD[name], text)[1]) for name in ("registers", "spilled"))  # type: ignore[index]
    else:
        registers, spilled = _resources(compiled.asm["cubin"])
    return Report(case, {name: count for name, count in found.items() if count}, registers, spilled,
                  int(compiled.metadata.shared))  # fmt: skip


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers, and bytes of stack, of the one kernel in a binary, as the assembler's own tool tells them."""
    package = find_spec("triton")
    assert package is not None and package.origin is not None, triton.__version__
    tool = Path(package.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    match = _RESOURCES.search(told)
    if match is None:
        raise RuntimeError(f"{tool} says nothing of registers: {told[:200]!r}")
    return int(match[1]), int(match[2])


#: of the table in docs/triton.md
HEAD = (
    "| device | kernel | instructions | registers a thread | spilled | shared memory |",
    "| --- | --- | --- | ---: | ---: | ---: |",
)


def row(one: Report) -> str:
    """A line of that table."""
    kinds = ", ".join(f"{count} {name}" for name, count in one.instructions.items()) or "none of matrices"
    cells = (one.case.family, one.case.name, kinds, one.registers, one.spilled, one.shared)
    return "| " + " | ".join(map(str, cells)) + " |"
