"""What installing it declares, and that nothing of vLLM is imported to load it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_entry_point_is_a_function_without_arguments() -> None:
    (target,) = PROJECT["entry-points"]["vllm.general_plugins"].values()
    module, _, name = target.partition(":")
    assert callable(getattr(import_module(module), name))


def test_it_changes_quantdispatch_itself_in_nothing() -> None:
    assert set(PROJECT["entry-points"]) == {"vllm.general_plugins"}


def test_the_extra_of_the_base_package_brings_it() -> None:
    base = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())["project"]
    assert any(text.startswith(PROJECT["name"]) for text in base["optional-dependencies"]["vllm"])
    assert not any("vllm" in text for text in base["dependencies"])


def test_loading_the_entry_point_imports_neither_vllm_nor_torch() -> None:
    code = "import sys, quantdispatch_vllm; print(sorted({'vllm', 'torch', 'compressed_tensors'} & set(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / "src")}, check=True
    )
    assert run.stdout.strip() == "[]"
