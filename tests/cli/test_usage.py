"""Usage, exit codes and the one-line rule, through the console script's own entry point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from quantdispatch.cli import app as module
from quantdispatch.cli.app import app, main
from quantdispatch.registry.errors import (
    CheckpointError,
    ConfigError,
    NoSchemeFound,
    PlanError,
    UnreadableCheckpointError,
)

COMMANDS = ("explain", "run", "verify", "rules", "doctor")


@pytest.fixture(autouse=True)
def no_debug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTDISPATCH_DEBUG", "")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["explian"], "explian"),
        (["explain"], "SOURCE"),
        (["explain", "a", "b"], "b"),
        (["explain", "a", "--nope"], "--nope"),
        (["explain", "a", "--device"], "--device"),
        (["explain", "a", "--module", "x"], "NAME=CLASS"),
        (["explain", "a", "--module", "=Linear"], "NAME=CLASS"),
        (["explain", "a", "--module", "x="], "NAME=CLASS"),
        (["explain", "a", "--module", "x=Li near"], "NAME=CLASS"),
        (["explain", "a", "--module", "x=A", "--module", "x=B"], "two classes"),
        (["run", "a"], "--prompt"),
        (["run", "a", "--prompt", "x", "--max-new-tokens", "0"], "--max-new-tokens"),
        (["run", "a", "--prompt", "x", "--max-new-tokens", "many"], "--max-new-tokens"),
        (["run", "a", "--prompt", "x", "--device", "cuda:sm90"], "cuda:sm90"),
        (["verify"], "PATH"),
        (["verify", "a", "--tolerance", "-1"], "--tolerance"),
        (["verify", "a", "--device", "tpu"], "tpu"),
        (["rules", "--check", "--coverage"], "two reports"),
        (["doctor", "x"], "x"),
    ],
)
def test_bad_usage_is_two_and_one_line(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1 and err.startswith("error: ") and says in err and "Traceback" not in err


def test_no_command_shows_the_help_and_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == "" and all(name in err for name in COMMANDS)


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS), ["explain", "-h"]])
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Usage: quantdispatch") and err == ""


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0 and result.stdout.startswith("quantdispatch ") and result.stdout.count("\n") == 1


def raising(error: BaseException) -> Any:
    def command(**_: Any) -> int:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("no quantization_config"), 2, "error: ConfigError: no quantization_config\n"),
        (CheckpointError("bad\nshape", layer="a.b"), 1, "error: CheckpointError: a.b: bad shape\n"),
        (UnreadableCheckpointError("truncated"), 2, "error: UnreadableCheckpointError: truncated\n"),
        (NoSchemeFound("none", remedy="a plugin"), 1, "error: NoSchemeFound: none; a plugin\n"),
        (
            PlanError("2 layers", errors=[CheckpointError("x"), NoSchemeFound("y")]),
            1,
            "error: CheckpointError: x (and 1 more; see quantdispatch explain)\n",
        ),
        (PlanError("nothing"), 1, "error: PlanError: nothing\n"),
        (FileNotFoundError(2, "No such file or directory", "a/b"), 2, "error: No such file or directory: a/b\n"),
        (
            RuntimeError("deep\n\x1b[31mtrouble"),
            2,
            "error: unexpected RuntimeError: deep \\x1b[31mtrouble (QUANTDISPATCH_DEBUG=1 shows where)\n",
        ),
        (
            RecursionError("too deep"),
            2,
            "error: unexpected RecursionError: too deep (QUANTDISPATCH_DEBUG=1 shows where)\n",
        ),
        (typer.Abort(), 130, "error: interrupted\n"),
        (typer.BadParameter("no"), 2, "error: Invalid value: no (see quantdispatch --help)\n"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_every_error_is_one_line_and_an_exit_code(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quantdispatch.cli.doctor.doctor_command", raising(error))
    assert main(["doctor"]) == code
    assert capsys.readouterr() == ("", line)


def test_an_interrupt_is_130_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quantdispatch.cli.doctor.doctor_command", raising(KeyboardInterrupt()))
    assert main(["doctor"]) == 130
    # some versions of typer say nothing
    assert capsys.readouterr().err in ("", "error: interrupted\n")


def test_a_broken_pipe_inside_a_command_is_quiet(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quantdispatch.cli.doctor.doctor_command", raising(BrokenPipeError(32, "Broken pipe")))
    assert main(["doctor"]) == 141
    assert capsys.readouterr() == ("", "")


def test_debug_shows_the_traceback_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantdispatch.cli.doctor.doctor_command", raising(RuntimeError("trouble")))
    assert main(["--debug", "doctor"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err and err.splitlines()[-1].startswith("error: unexpected RuntimeError: trouble")


def test_warnings_are_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import warnings

    def command(**_: Any) -> int:
        warnings.warn("plugin acme\nis left out", RuntimeWarning, stacklevel=1)
        return 0

    monkeypatch.setattr("quantdispatch.cli.doctor.doctor_command", command)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["doctor"]) == 0
    assert capsys.readouterr() == ("", "warning: plugin acme is left out\n")


def test_modules_are_read_as_plan_takes_them() -> None:
    assert module._modules([]) is None
    assert module._modules(["a.b=Linear", "c=My, Linear", "c=My,Linear"]) == {"a.b": ("Linear",), "c": ("My", "Linear")}


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONUTF8": "0", **options.pop("env", {})}
    return subprocess.run(
        [sys.executable, "-m", "quantdispatch.cli", *arguments],
        capture_output=True,
        env=environment,
        timeout=120,
        **options,
    )


def test_a_closed_pipe_is_quiet() -> None:
    command = f"{sys.executable} -m quantdispatch.cli rules --json | head -c 1"
    result = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, timeout=120)
    assert result.stderr == b"" and result.stdout == b"{"
    # the pipe may also have taken it all before it closed
    assert result.returncode in (0, 141)


def test_doctor_in_ascii_and_as_json() -> None:
    plain = run("doctor", env={"PYTHONIOENCODING": "ascii"})
    assert plain.returncode == 0, plain.stderr
    assert plain.stdout.decode("ascii").startswith("quantdispatch ") and " | " in plain.stdout.decode("ascii")
    result = run("doctor", "--json")
    report = json.loads(result.stdout)
    assert {"python", "packages", "devices", "isa", "plugins", "problems"} <= report.keys()
    assert [p["name"] for p in report["packages"] if p["version"] is None] == [
        name for name in (p["name"] for p in report["packages"]) if not installed(name)
    ]


def installed(name: str) -> bool:
    import importlib.metadata

    try:
        return bool(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return False


def test_the_source_tree_is_not_needed(tmp_path: Path) -> None:
    assert run("--version", cwd=tmp_path).returncode == 0
