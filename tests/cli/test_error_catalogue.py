"""Every code of the catalogue is provoked by a row, and what is shown names layer, field, observed, required, remedy.

The rows are ``tests/data/errors/*.toml``, as ``error_cases`` explains them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import error_calls
import pytest
from error_cases import CASES, Case, check_parts, command_of, noted, surroundings, written

import quantdispatch
from quantdispatch.cli.app import main
from quantdispatch.cli.docs import pages
from quantdispatch.registry import errors as errors_module
from quantdispatch.registry.analysis.findings import CODES
from quantdispatch.registry.error_codes import CATALOGUE
from quantdispatch.registry.error_parts import PARTS
from quantdispatch.registry.errors import QuantDispatchError

ROOT = Path(quantdispatch.__file__).parent
CLASSES = [kind for kind in vars(errors_module).values() if isinstance(kind, type) and issubclass(kind, Exception)]
UNREADABLE = ("ConfigError", "UnreadableCheckpointError")
Make = Callable[..., Path]
Patch = pytest.MonkeyPatch
Captured = pytest.CaptureFixture[str]


def rows(wanted: Callable[[Case], Any]) -> Any:
    chosen = [case for case in CASES if wanted(case)]
    return pytest.mark.parametrize("case", chosen, ids=[case["at"] for case in chosen])


@rows(lambda case: "python" not in case)
def test_the_command_shows_code_and_all_parts(
    case: Case,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: Patch,
    tiny_checkpoint: Make,
) -> None:
    path = written(case, tmp_path / "c", tiny_checkpoint)
    with surroundings(case, path, monkeypatch), noted(monkeypatch) as made:
        code = main(command_of(case, path))
    shown = " ".join("".join(capsys.readouterr()).split())
    assert f"[{case['code']}]" in shown, shown
    error = next(error for error in reversed(made) if error.code == case["code"])
    assert code == error.exit_code and type(error).__name__ == CATALOGUE[case["code"]].error
    check_parts(case, error, shown)


@rows(lambda case: "python" in case)
def test_a_call_raises_code_and_all_parts(
    case: Case, tmp_path: Path, monkeypatch: Patch, tiny_checkpoint: Make
) -> None:
    assert case["because"], "why no command leads to it"
    call = getattr(error_calls, case["python"])
    with pytest.raises(QuantDispatchError) as caught:
        call(error_calls.Room(tmp_path, tiny_checkpoint, monkeypatch))
    assert caught.value.code == case["code"] and type(caught.value).__name__ == CATALOGUE[case["code"]].error
    check_parts(case, caught.value, str(caught.value))


@rows(lambda case: case.get("process"))
def test_a_process_of_its_own_shows_the_same(case: Case, tmp_path: Path) -> None:
    """The installed command: one line on standard error, or the plan on standard output, and never a traceback."""
    path = written(case, tmp_path / "c")
    command = [sys.executable, "-m", "quantdispatch.cli", *command_of(case, path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "COLUMNS": "200"})
    shown = " ".join((done.stdout + done.stderr).split())
    assert f"[{case['code']}]" in shown and "Traceback" not in shown, shown
    assert all(case[part] in shown for part in PARTS if part in case), shown
    assert done.returncode == (
        2 if CATALOGUE[case["code"]].error in ("ConfigError", "UnreadableCheckpointError") else 1
    )


@rows(lambda case: "python" not in case and case.get("command", "explain") == "explain")
def test_json_has_the_same_parts(
    case: Case,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: Patch,
    tiny_checkpoint: Make,
) -> None:
    path = written(case, tmp_path / "c", tiny_checkpoint)
    with surroundings(case, path, monkeypatch):
        code = main([*command_of(case, path), "--json"])
    document = json.loads(capsys.readouterr().out)
    errors = [layer["error"] for layer in document.get("layers", ()) if layer["error"]] or [document["error"]]
    shown = next(error for error in errors if error["code"] == case["code"])
    assert code and shown["type"] == CATALOGUE[case["code"]].error
    for part in PARTS:
        assert (shown[part] is None) if part in case.get("absent", ()) else (case[part] in str(shown[part])), part
        assert part in case.get("absent", ()) or part == "layer" or case[part] in shown["message"]


def test_every_code_has_a_row_and_every_row_a_code() -> None:
    provoked = {case["code"] for case in CASES}
    assert provoked == set(CATALOGUE), sorted(provoked ^ set(CATALOGUE))
    by_command = {case["code"] for case in CASES if "python" not in case}
    assert not {code for code in by_command if CATALOGUE[code].python_only}, "a command leads to these"


@rows(lambda case: True)
def test_a_row_leaves_out_only_what_its_code_does(case: Case) -> None:
    absent = case.get("absent", [])
    assert set(absent) <= set(CATALOGUE[case["code"]].unnamed), "the catalogue says that these are named"
    assert sorted([*absent, *(part for part in PARTS if part in case)]) == sorted(PARTS), "each part once"
    assert all(case[part] for part in PARTS if part in case), "an empty text is in every other"


def test_the_catalogue_is_whole() -> None:
    assert not set(CATALOGUE) & {row.code for row in CODES.values()}
    for row in CATALOGUE.values():
        assert re.fullmatch(r"QD\d{3}", row.code) and row.meaning and row.cause and row.remedy
    page = pages()["errors.md"]
    assert (ROOT / "docs/errors.md").read_text(encoding="utf-8") == page, "run: make pages"
    for row in CATALOGUE.values():
        section = page.partition(f"\n### {row.code}\n")[2].partition("\n### ")[0]
        assert "* **Cause**: " in section and "* **Remedy**: " in section and "* **Names**: " in section, row.code


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_without_a_code_has_its_classs(kind: type[QuantDispatchError]) -> None:
    error = kind("wrong")
    assert CATALOGUE[error.code].error == kind.__name__ and error.mark == "" and error.to_json()["code"] == error.code
    assert kind("wrong", code="QD501").mark == " [QD501]"
