"""CPU time of finding and collecting fifty installed plugins, a rule each, beside what Python takes to import them."""

from __future__ import annotations

import compileall
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PLUGINS = 50
_MODULE = """
from quantdispatch import Absent, Args, Rule, When, hookimpl


@hookimpl
def quantdispatch_rules():
    weights = Args(type="int", num_bits={{4}}, strategy={{"channel"}}, symmetric=False, dynamic=False)
    when = When(kind="linear", format="format-{number}", inputs=Absent, outputs=Absent, weights=weights)
    yield Rule(name="rule-{number}", when=when, scheme="{name}:Scheme")
"""
#: the built-in table is there already when plugins are collected
_COLLECT = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from quantdispatch import Absent, Args, Rule, When, hookimpl
from quantdispatch.registry import plugins
from quantdispatch.registry.registry import build
build([])
times = [time.process_time()]
sources = [source for source in plugins.installed_plugins() if source.name.startswith("measured_")]
times.append(time.process_time())
for source in sources:
    source.load()
times.append(time.process_time())
collected = [plugins.collect(source) for source in sources]
times.append(time.process_time())
assert all(one.status.state == "ok" and one.rules for one in collected) and len(collected) == int(sys.argv[2])
print(json.dumps([after - before for before, after in zip(times, times[1:])]))
"""


def measure(runs: int = 7) -> list[dict[str, Any]]:
    """A row a step, the median of ``runs`` processes. The first and the last are the package's."""
    with tempfile.TemporaryDirectory() as folder:
        install(Path(folder), PLUGINS)
        command = [sys.executable, "-c", _COLLECT, folder, str(PLUGINS)]
        found = [
            json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(runs)
        ]
    steps = ("find them", "import them (Python's own)", "collect them")
    rows = [
        {"step": step, "cpu_ms": 1e3 * statistics.median(times)}
        for step, times in zip(steps, zip(*found, strict=True), strict=True)
    ]
    own = statistics.median(times[0] + times[2] for times in found)
    return [*rows, {"step": f"{PLUGINS} plugins, without their import", "cpu_ms": 1e3 * own}]


def install(folder: Path, count: int) -> None:
    """``count`` plugins named measured_N, as an installer would leave them in ``folder``."""
    for number in range(count):
        name = f"measured_{number}"
        (folder / f"{name}.py").write_text(_MODULE.format(number=number, name=name), encoding="utf-8")
        metadata = folder / f"{name}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
        (metadata / "entry_points.txt").write_text(f"[quantdispatch]\n{name} = {name}\n", encoding="utf-8")
    compileall.compile_dir(str(folder), quiet=1)
