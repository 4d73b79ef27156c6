"""The package and its command where Python, the home folder and the environment are not the usual ones."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tiny_plans as tiny

from quantdispatch.registry.plan import plan

FLAGS = {"optimized": ["-O"], "twice optimized": ["-OO"], "warnings": ["-W", "error"], "isolated": ["-I"]}


def config_file(folder: Path) -> Path:
    tensors = tiny.layers("m.q_proj", "m.k_proj")
    return tiny.checkpoint(folder, tiny.config(ignore=()), tensors)


def explained(flags: list[str], source: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *flags, "-m", "quantdispatch.cli", "explain", str(source)]
    return subprocess.run(command, env=environment, cwd=source, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_flags_of_python_change_nothing(flags: list[str], tmp_path: Path) -> None:
    done = explained(flags, config_file(tmp_path), dict(os.environ))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "2 layers" in done.stdout


@pytest.mark.parametrize("home", ["read-only", "none"])
def test_no_home_to_write_in(home: str, tmp_path: Path) -> None:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o500)
    environment = {key: value for key, value in os.environ.items() if key != "HOME" and not key.startswith("XDG_")}
    if home == "read-only":
        environment["HOME"] = str(folder)
    done = explained([], config_file(tmp_path), environment)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert not list(folder.iterdir())


def test_plans_from_several_threads_are_the_same(tmp_path: Path) -> None:
    source = config_file(tmp_path)
    alone = plan(source).to_json()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: plan(source).to_json(), range(32)))
    assert all(other == alone for other in found)


@pytest.mark.parametrize("kept", [0, 7, 8, 40, -1])
def test_a_cut_file_leaves_no_file_open(kept: int, tmp_path: Path) -> None:
    source = config_file(tmp_path)
    file = source / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    before = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []
    with pytest.raises(Exception, match="model.safetensors"):
        plan(source)
    assert len(os.listdir("/proc/self/fd") if before else []) == len(before)
