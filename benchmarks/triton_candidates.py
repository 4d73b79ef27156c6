"""Compiles everything that tuning may measure: ``python -m benchmarks.triton_candidates [--family sm90] [--every N]``.

For sm80, sm90, sm100 and gfx942, with no device. Each has to have matrix instructions of its kind and to fit into the
family's shared memory; 1 is returned where one does not. All of it takes an hour and a half of a core; ``--every 10``
takes each tenth, from ``--first`` on.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from typing import Any

from quantdispatch.backends.triton import aot, candidates_aot
from quantdispatch.backends.triton.config import SHARED


@cache
def cases(family: str) -> list[aot.Case]:
    return list(candidates_aot.cases(family))


def fault(case: aot.Case, found: aot.Report) -> str:
    """What makes a candidate no candidate; empty for a good one. Spilling is slow and not wrong."""
    scaled = [name for name in found.instructions if name.endswith("scaled")]
    if not found.instructions:
        return "no matrix instructions"
    if case.name.startswith("block_scaled") and not scaled:
        return "no instructions that take scales"
    if found.shared > SHARED[case.family]:
        return f"{found.shared} bytes of shared memory, {SHARED[case.family]} there are"
    return ""


def tried(what: tuple[str, int]) -> dict[str, Any]:
    """A case by its place among all: cases hold kernels, which do not travel between processes."""
    family, number = what
    case = cases(family)[number]
    try:
        found = aot.report(case)
    except Exception as error:  # one that does not compile must not hide the others
        return {"case": case.id, "fault": f"{type(error).__name__}: {str(error)[:300]}"}
    return {"case": case.id, "fault": fault(case, found), "instructions": dict(found.instructions),
            "registers": found.registers, "spilled": found.spilled, "shared": found.shared}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.triton_candidates", description=__doc__)
    parser.add_argument("--family", action="append", choices=(*candidates_aot.FAMILIES, "sm89", "sm120"))
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kernel", default="", help="only those whose name begins so: experts, wna16, ...")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", help="file for all that was found")
    asked = parser.parse_args()
    work = [
        (family, number)
        for family in asked.family or candidates_aot.FAMILIES
        for number, case in enumerate(cases(family))
        if case.name.startswith(asked.kernel)
    ][asked.first :: asked.every]
    rows = []
    with ProcessPoolExecutor(asked.processes, mp_context=get_context("spawn")) as pool:
        for row in pool.map(tried, work, chunksize=4):
            rows.append(row)
            if row["fault"]:
                print(f"{row['case']}: {row['fault']}", flush=True)
    faults = sum(bool(row["fault"]) for row in rows)
    spilled = sum(row.get("spilled", 0) > 0 for row in rows)
    print(f"{len(rows)} candidates compiled, {faults} of them with a fault, {spilled} spill", file=sys.stderr)
    if asked.json:
        with open(asked.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
