"""What `quantdispatch doctor` says of the native kernels: there, missing, broken."""

from __future__ import annotations

import json

import pytest

from quantdispatch.cli import doctor_native
from quantdispatch.cli.app import main
from quantdispatch.registry.environment import native_library


def test_missing_kernels_are_no_fault_and_have_a_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor_native, "native_library", lambda: None)
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "native kernels    missing  without them no fast products on the CPU" in printed
    assert "install a C++17 compiler (g++ or clang++), then pip install" in printed
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["native"]
    assert report["state"] == "missing" and report["lost"] and report["remedy"]


@pytest.mark.skipif(native_library() is None, reason="the native kernels were not built")
def test_kernels_that_work(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("QUANTDISPATCH_ISA", "portable")
    report = doctor_native.native_report()
    assert report["state"] == "ok" and report["isa"] == "portable" and report["threads"] == 1
    monkeypatch.setattr("quantdispatch.cli.doctor.native_report", lambda: report)
    assert main(["doctor"]) == 0
    assert "native kernels    portable" in capsys.readouterr().out


@pytest.mark.skipif(native_library() is None, reason="the native kernels were not built")
def test_an_unknown_instruction_set_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUANTDISPATCH_ISA", "sse9")
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "native kernels    broken" in printed and "observed sse9, required one of portable" in printed


@pytest.mark.skipif(native_library() is None, reason="the native kernels were not built")
def test_a_self_test_that_crashes_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_native, "_SELFTEST", "quantdispatch.no_such_module")
    report = doctor_native.native_report()
    assert report["state"] == "broken" and "no_such_module" in report["error"]
