"""Each command and program of the pages that a newcomer reads does what the page says, in an empty folder.

``tests/support/doc_pages.py`` says how a page is written so that it can be tried.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from doc_pages import ROOT, Step, matches, steps

from quantdispatch.registry.environment import Environment
from quantdispatch.registry.values import ABSENT

DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    DOCS / "index.md",
    DOCS / "tutorial.md",
    *sorted((DOCS / "how-to").glob("*.md")),
    *sorted((DOCS / "design").glob("*.md")),
]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

#: what begins a command: none of these may stand in a block that is not carried out
COMMAND = re.compile(r"^\s*(?:\$ )?(quantdispatch|pip|make|python3?) [\w./'-]", re.MULTILINE)
#: commands of which the CI does just that, outside of the tests: which line of it
IN_CI = {
    "make demo": "make demo",
    "make test": "make test",
    "pip install 'quantdispatch[transformers]'": """"$(echo "$scratch"/dist/quantdispatch-*.whl)[transformers]\"""",
}


@pytest.fixture
def folder(tmp_path: Path, smollm2) -> Path:
    """What a reader has: a checkpoint under the names that the pages use, and the examples of a clone."""
    checkpoint = smollm2("w4a16-asym")
    (tmp_path / "path" / "to").mkdir(parents=True)
    for name in ("smollm2-w4a16-asym", "path/to/checkpoint"):
        (tmp_path / name).symlink_to(checkpoint)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_a_page_does_what_it_says(name: str, folder: Path) -> None:
    if Environment.detect().facts["package.quantdispatch-native"] is ABSENT:
        pytest.skip("the pages show the native kernels, which are not built here: no C++ compiler")
    found = steps(ROOT / name)
    assert found
    for step in found:
        carry_out(step, name, folder)


def carry_out(step: Step, page: str, folder: Path) -> None:
    if step.kind == "file":
        path = folder / step.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(step.text, encoding="utf-8")
        return
    if step.text in IN_CI:
        assert IN_CI[step.text] in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
        return
    command = ["bash", "-c", step.text] if step.kind == "command" else [sys.executable, "-c", step.text]
    done = subprocess.run(
        command, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False, timeout=300,
    )  # fmt: skip
    where = f"{page}:{step.line}: {step.text}"
    assert done.returncode == step.code, f"{where}\nexits with {done.returncode}:\n{done.stdout}"
    if step.prints is not None:
        assert matches(step.prints, done.stdout), f"{where}\nprints\n{done.stdout}\nand not\n{step.prints}"


def environment(folder: Path) -> dict[str, str]:
    """pip installs into the folder, and nothing is asked of a network."""
    site = str(folder / "installed")
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("QUANTDISPATCH_", "FORCE_COLOR"))},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": site, "PIP_TARGET": site, "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_QUIET": "3", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
        "NO_COLOR": "1",
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_no_command_stands_where_it_is_not_tried(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for language, block in re.findall(r"^ *```(\S*)\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        if language not in ("console", "python", "json", "toml"):
            assert not COMMAND.search(block), f"{name}: a command in a block of {language or 'text'}:\n{block}"
