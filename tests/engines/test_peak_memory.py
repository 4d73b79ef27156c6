"""Loading holds one layer at a time: a process's own account of its memory, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = """
import json, re, sys
import torch, transformers, transformers.models.llama.modeling_llama
import quantdispatch as qd

def status(key):
    return int(re.search(rf"{key}:\\s+(\\d+) kB", open("/proc/self/status").read()).group(1)) * 1024

open("/proc/self/clear_refs", "w").write("5")   # the high-water mark starts again from here
idle = status("VmRSS")
model = qd.load(sys.argv[1])
from quantdispatch.engines.tensors import resident_bytes
print(json.dumps({"idle": idle, "peak": status("VmHWM"), "weights": resident_bytes(model)}))
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's /proc to measure memory")
@pytest.mark.parametrize("variant", ["w4a16-asym", "w8a8-int8", "fp8-dynamic"])
def test_peak_is_what_is_stored_and_little_more(variant: str, smollm2: Callable[..., Path]) -> None:
    folder = smollm2(variant)
    stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    run = subprocess.run([sys.executable, "-c", SCRIPT, str(folder)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    figures = json.loads(run.stdout.splitlines()[-1])
    assert figures["peak"] - figures["idle"] <= stored + 150e6, (figures, stored)
