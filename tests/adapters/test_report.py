"""The line in an engine's log: layers by scheme and kernel, and the command that explains them."""

from __future__ import annotations

import logging

import pytest

from quantdispatch.engines.adapters.report import Report

LOG = logging.getLogger("stand_in.plugins")


def noted(source: str = "/models/m") -> Report:
    report = Report(LOG, source)
    for number in range(3):
        report.note(f"model.layers.{number}.mlp.down_proj", "wNa16_int", "cpu/native")
    report.note("lm_head", None, "engine")
    return report


def test_layers_by_scheme_and_kernel_and_the_command() -> None:
    assert noted().line() == (
        "quantdispatch: 3 layers wNa16_int on cpu/native, 1 layer dense on engine; why: quantdispatch explain /models/m"
    )


def test_a_layer_counts_once_under_its_last_kernel() -> None:
    report = noted()
    report.note("model.layers.0.mlp.down_proj", "wNa16_int", "reference")
    assert "2 layers wNa16_int on cpu/native" in report.line() and "1 layer wNa16_int on reference" in report.line()


def test_what_stays_unquantized_and_a_source_that_is_not_known() -> None:
    report = noted("")
    report.remarks["cache"] = "left unquantized, the engine has none of int8"
    assert report.line().endswith(
        "; cache: left unquantized, the engine has none of int8; why: quantdispatch explain MODEL"
    )


def test_why_a_class_of_the_engine_does_not_compute_what_it_could() -> None:
    report = noted()
    for reason in ("N = 96 is no multiple of 64", "K = 8 is no multiple of 64"):
        report.refused("Engine's WNA16", reason)
    assert report.line().endswith(
        "; not on Engine's WNA16: N = 96 is no multiple of 64; why: quantdispatch explain /models/m"
    )


def test_it_is_said_once_for_what_is_known(caplog: pytest.LogCaptureFixture) -> None:
    report = noted()
    with caplog.at_level(logging.INFO, LOG.name):
        Report(LOG).say()
        report.say()
        report.say()
        report.note("draft.fc", "wNa16_int", "cpu/native")
        report.say()
    assert [message.count("quantdispatch explain") for message in caplog.messages] == [1, 1]
    assert "4 layers wNa16_int" in caplog.messages[1]
