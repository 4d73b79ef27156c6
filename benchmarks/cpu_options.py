"""What the CPU benchmarks share on the command line, and what they write."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .cpu_report import Floors, report

#: of a row of the file
KEYS = ("op", "m", "n", "k", "group_size", "ms", "bf16_ms", "ratio", "gbps", "roof_gbps", "error")
#: what torch and oneDNN are held to, so that all stand under the same cap
_CAPS = {"avx2": ("avx2", "AVX2"), "portable": ("default", "SSE41")}


def add_options(parser: argparse.ArgumentParser, ops: Sequence[str], rows: Sequence[int], seconds: float) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there as well")
    parser.add_argument("--ops", nargs="+", choices=ops, default=ops, metavar="OP", help=", ".join(ops))
    parser.add_argument("--m", nargs="+", type=int, default=rows, metavar="M", help="numbers of rows")
    parser.add_argument("--seconds", type=float, default=seconds, help="of a cell, once it has three rounds")
    parser.add_argument(
        "--isa", choices=("avx512_vnni", "avx512", *_CAPS), help="use no wider instruction set, nor let torch"
    )


@contextmanager
def capped(isa: str | None) -> Iterator[None]:
    """Before torch is imported: it reads these once."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if isa is not None:
        os.environ["QUANTDISPATCH_ISA"] = isa
        if isa in _CAPS:
            os.environ["ATEN_CPU_CAPABILITY"], os.environ["ONEDNN_MAX_CPU_ISA"] = _CAPS[isa]
    yield


def finish(options: argparse.Namespace, title: str, found: Sequence[Mapping[str, Any]], floors: Floors) -> None:
    from rich.console import Console

    facts = machine()
    report(Console(width=140), title, found, floors, facts["isa"])
    if options.json:
        whole = {
            "rows": [{key: row[key] for key in KEYS} for row in found if "peer" not in row],
            "peers": [row for row in found if "peer" in row],
            "kernels": {row["op"]: row["kernel"] for row in found if "peer" not in row},
            "roof_4_streams_gbps": max((row.get("roof_4_streams_gbps") or 0.0 for row in found), default=None),
            "machine": facts,
        }
        options.json.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


def machine() -> dict[str, str]:
    import torch

    from quantdispatch.backends.cpu.native import library
    from quantdispatch.registry.errors import NoKernelFound

    try:
        isa = library.isa()
    except NoKernelFound:
        isa = "no native kernels"
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8") if os.path.exists("/proc/cpuinfo") else ""
    model = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return {
        "isa": isa,
        "processor": model.group(1) if model else platform.processor(),
        "torch": torch.__version__,
    }
