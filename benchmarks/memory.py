"""Resident weight bytes, and the peak of memory while loading, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from . import models

_CHILD = """
import json, sys
def peak():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) * 1024
import torch, transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
idle = peak()
import quantdispatch
how, path = sys.argv[1:]
if how == "quantdispatch":
    model = quantdispatch.load(path)
else:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
loaded = peak()
if how == "transformers":
    model(torch.zeros(1, 2, dtype=torch.long))
from quantdispatch.engines.generate import resident_bytes
print(json.dumps({"idle": idle, "peak": loaded, "resident": resident_bytes(model)}))
"""


def measure() -> list[dict[str, Any]]:
    """A row a variant and way of loading. ``loading``: peak while loading over the idle process, in bytes."""
    ways = [("quantdispatch", name) for name in (*models.WEIGHT_ONLY, *models.WITH_INPUTS)]
    rows = []
    for how, name in [*ways, ("transformers", "w4a16-sym"), ("transformers", "bf16")]:
        path = models.folder(name)
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, how, str(path)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{how} {name}: {done.stderr.strip()[-2000:]}")
        figures = json.loads(done.stdout.strip().splitlines()[-1])
        rows.append(
            {
                "loader": how,
                "variant": name,
                "stored_bytes": models.stored_bytes(path),
                "resident_bytes": figures["resident"],
                "loading_bytes": figures["peak"] - figures["idle"],
            }
        )
    return rows
