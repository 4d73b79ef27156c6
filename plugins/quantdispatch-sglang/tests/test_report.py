"""The line in SGLang's log."""

from __future__ import annotations

import logging

import pytest
from quantdispatch_sglang.report import Report


def test_one_line(caplog: pytest.LogCaptureFixture) -> None:
    report = Report("/models/m")
    for number in range(3):
        report.note(f"model.layers.{number}.mlp.down_proj", "wNa16_int", "cpu/native")
    report.note("lm_head", "dense", "sglang")
    report.remarks["cache"] = "left unquantized, SGLang has none of int8"
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            report.say()
    assert caplog.messages == [
        "quantdispatch: 3 layers wNa16_int on cpu/native, 1 layer dense on sglang; "
        "cache: left unquantized, SGLang has none of int8; why: quantdispatch explain /models/m"
    ]


def test_nothing_to_say(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Report().say()
    assert not caplog.messages
