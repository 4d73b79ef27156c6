"""vLLM's own tests for compressed-tensors, without our plugin and with it: ``python run.py FOLDER`` in vLLM's
environment (``make test-engine-vllm-own``). ``--page``: run nothing, write the table of the last results.

The tests come from vLLM's source distribution, which pip fetches into FOLDER; none of them is changed or kept here.
Those are run whose file names compressed-tensors, each file in a process of its own, because some end the interpreter
where there is no GPU. Nothing is asked of a hub. A file of which nothing passes without us is not run with us.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from recorder import SIDES

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
RESULTS = HERE / "results.json"
PAGE = ROOT / "docs" / "vllm.md"
MARKS = ("<!-- vLLM's own tests -->", "<!-- /vLLM's own tests -->")
VERSION = "0.32.0"
NAMED = re.compile(r"compressed[-_ ]?tensors", re.IGNORECASE)
#: for a file, on one side
SECONDS = 600
#: exit status of pytest where the plugin is not active (``recorder.py``)
REFUSED = 4

#: why outcomes differ, by file and function. A difference that is not here is an error.
DIFFERENCES: dict[str, str] = json.loads((HERE / "differences.json").read_text(encoding="utf-8"))

Outcomes = dict[str, dict[str, str]]


def fetch(folder: Path) -> Path:
    """The tests of vLLM's source distribution, unpacked."""
    archive, tests = folder / f"vllm-{VERSION}.tar.gz", folder / f"vllm-{VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    if not archive.exists():
        # pip asks a source distribution for its metadata: nothing is compiled for that
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary",
             "vllm", "--dest", str(folder), f"vllm=={VERSION}"],
            check=True, env={**os.environ, "VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": VERSION},
        )  # fmt: skip
    if not tests.exists():
        with tarfile.open(archive) as tar:
            members = [m for m in tar if m.name.split("/")[1:2] in (["tests"], ["pyproject.toml"])]
            tar.extractall(folder, members, filter="data")
    return tests


def files(tests: Path) -> list[str]:
    """Those that name compressed-tensors."""
    found = (path for path in tests.glob("tests/**/test_*.py") if NAMED.search(path.read_text(encoding="utf-8")))
    return sorted(str(path.relative_to(tests)) for path in found)


def run(tests: Path, file: str, side: str) -> Outcomes:
    """What became of each test of ``file``, in a process forked from this one, which has imported vLLM."""
    written = tests / "outcomes.json"
    written.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        _in_child(tests, file, side, written)
    status = _ended(child)
    if status is None:
        return {file: {"outcome": "no import", "reason": f"not done after {SECONDS} s"}}
    if status == REFUSED:
        sys.exit((tests / "log").read_text(encoding="utf-8"))
    if written.exists():
        found: Outcomes = json.loads(written.read_text(encoding="utf-8"))
        return found
    return {file: {"outcome": "no import", "reason": f"the interpreter ended with {status}"}}


def _in_child(tests: Path, file: str, side: str, written: Path) -> NoReturn:
    status = 1
    try:
        os.setpgid(0, 0)
        log = os.open(tests / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ |= {"SIDE": side, "OUTCOMES": str(written), "QUANTDISPATCH_VLLM": "0" if side == "without" else "1"}
        os.chdir(tests)
        sys.path.insert(0, str(tests))
        import pytest

        status = int(pytest.main(["-p", "no:cacheprovider", "-p", "recorder", "-q", "--tb=short", file]))
    finally:
        os._exit(status)


def _ended(child: int) -> int | None:
    """Its exit status; ``None`` if it had to be ended, with what it had started."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.2)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def rows(file: str, sides: dict[str, Outcomes]) -> list[dict[str, Any]]:
    """A row for each test function; parameters of it are counted."""
    names = dict.fromkeys(_function(test) for outcomes in sides.values() for test in outcomes)
    found = []
    for name in names:
        row: dict[str, Any] = {"file": file, "test": name}
        for side, outcomes in sides.items():
            own = [found for test, found in outcomes.items() if _function(test) == name]
            row[side] = dict(Counter(one["outcome"] for one in own))
            if side == "without":
                row["reason"] = next((one["reason"] for one in own if one["outcome"] != "passed"), "")
            elif row[side] != row["without"]:
                worse = [one["reason"] for one in own if one["outcome"] not in ("passed", "skipped")]
                row[f"reason {side}"] = next(iter(worse), "")
        found.append(row)
    return found


def _function(test: str) -> str:
    return test.split("::", 1)[1].split("[", 1)[0] if "::" in test else ""


def measure(folder: Path, chosen: list[str]) -> None:
    """Run what is chosen, all files if none is, and write the results."""
    tests = fetch(folder)
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    import vllm.entrypoints.llm
    import vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors  # noqa: F401

    found: list[dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8")) if chosen and RESULTS.exists() else []
    for file in chosen or files(tests):
        sides = {"without": run(tests, file, "without")}
        if any(one["outcome"] == "passed" for one in sides["without"].values()):
            for side in SIDES[1:]:
                if side == "with" or "CompressedTensorsConfig" in (tests / file).read_text(encoding="utf-8"):
                    sides[side] = run(tests, file, side)
        found = sorted([row for row in found if row["file"] != file] + rows(file, sides), key=lambda row: row["file"])
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(file, *(f"{side}: {_counted(_sum(rows(file, sides), side))}" for side in sides), sep="\n  ", flush=True)


def _sum(found: list[dict[str, Any]], side: str) -> dict[str, int]:
    return dict(sum((Counter(row.get(side, {})) for row in found), Counter()))


def _counted(outcomes: dict[str, int]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()) or "not run"


def unexplained(found: list[dict[str, Any]]) -> list[str]:
    """Tests that pass without us and not with us, for no reason that is known."""
    return [
        f"{row['file']}::{row['test']} {side}: {row[f'reason {side}']}"
        for row in found
        for side in SIDES[1:]
        if f"reason {side}" in row and f"{row['file']}::{row['test']}" not in DIFFERENCES
    ]


def rendered(found: list[dict[str, Any]]) -> str:
    """Two tables: by file, and the tests whose outcome is another one with us."""
    lines = ["| file | without | with | our class under vLLM's name | why the others do not run |", "|" + " --- |" * 5]
    for file in dict.fromkeys(row["file"] for row in found):
        own = [row for row in found if row["file"] == file]
        cells = [_counted(_sum(own, side)) if any(side in row for row in own) else "" for side in SIDES]
        reasons = Counter(_kind(row["reason"]) for row in own if row["reason"])
        lines.append(f"| `{file}` | {' | '.join(cells)} | {'; '.join(kind for kind, _ in reasons.most_common())} |")
    lines += ["", "| test | where | what is another with us, and why |", "|" + " --- |" * 3]
    for row in found:
        where = [side for side in SIDES[1:] if f"reason {side}" in row]
        if where:
            why = DIFFERENCES.get(f"{row['file']}::{row['test']}", "not known")
            lines.append(f"| `{row['test']}` | {', '.join(where)} | {why} |")
    return "\n".join(lines)


#: what a reason says, in the order in which they are looked for
KINDS = {
    "a model of the hub": r"huggingface|LocalEntryNotFound|cached snapshot|ModelConfig|hf_hub|OfflineMode|HF_HUB",
    "a GPU": r"(?i)cuda|rocm|gpu|nvidia|turing|sm_?\d\d|ampere|blackwell|hopper|device capability|driver|triton|xpu",
    "a package": r"No module named|ImportError|not installed|requires? \w+|is not available",
    "an operator that this build of vLLM lacks": r"_OpNamespace|has no attribute|AMX|avx512|AVX-512",
}


def _kind(reason: str) -> str:
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, reason)), reason.replace("|", "/"))


def page(text: str, found: list[dict[str, Any]]) -> str:
    """``text`` with the tables between the marks."""
    if any(text.count(mark) != 1 for mark in MARKS):
        raise ValueError(f"{PAGE.name} has to have one of each of {MARKS}: the tables go between them")
    head, _, rest = text.partition(MARKS[0])
    _, _, tail = rest.partition(MARKS[1])
    return f"{head}{MARKS[0]}\n{rendered(found)}\n{MARKS[1]}{tail}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the tests are fetched to")
    parser.add_argument("files", nargs="*", help="only these, as they are named in the results")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if not options.page:
        measure(options.folder.resolve(), options.files)
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    if unknown := unexplained(found):
        sys.exit("\n".join(["pass without the plugin, and not with it:", *unknown]))


if __name__ == "__main__":
    main()
