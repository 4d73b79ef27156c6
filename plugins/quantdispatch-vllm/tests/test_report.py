"""The line in vLLM's log: once for a model, when its last module has weights, on the first rank."""

from __future__ import annotations

import logging

import pytest
from quantdispatch_vllm.guard import GUARD
from quantdispatch_vllm.report import Report

from quantdispatch.engines.adapters.layers import LayerTable, Members

INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
BLOCK = {
    "quant_method": "compressed-tensors",
    "config_groups": {"g": {"targets": ["Linear"], "weights": INT4, "format": "pack-quantized"}},
}


def noted(report: Report, modules: list[object]) -> None:
    for number, module in enumerate(modules):
        report.expect(module)
        report.note(f"model.layers.{number}.mlp.down_proj", "wNa16_int", "cpu/native")


def test_one_line_when_the_last_module_is_loaded(caplog: pytest.LogCaptureFixture) -> None:
    report, modules = Report("/models/m"), [object(), object(), object()]
    noted(report, modules)
    with caplog.at_level(logging.INFO, GUARD.log):
        for module in modules[:2]:
            report.done(module)
        assert not caplog.messages
        report.done(modules[2])
        report.done(modules[2])  # weights loaded once more
    assert caplog.messages == ["quantdispatch: 3 layers wNa16_int on cpu/native; why: quantdispatch explain /models/m"]
    assert caplog.records[0].name.startswith("vllm."), "vLLM shows its own loggers"


def test_other_ranks_are_silent(caplog: pytest.LogCaptureFixture) -> None:
    report, module = Report("/models/m"), object()
    noted(report, [module])
    with caplog.at_level(logging.INFO, GUARD.log):
        report.done(module, rank=1)
    assert not caplog.messages


def test_what_vllm_cannot_compute_is_said_once_for_a_scheme_and_quietly(caplog: pytest.LogCaptureFixture) -> None:
    report, table = Report(), LayerTable(BLOCK)
    with caplog.at_level(logging.DEBUG, GUARD.log):
        for name in ("a", "b"):
            report.unable(Members(name, (table.layer(name),)), ValueError("no such group"))
    assert [(r.levelname, "wNa16_int here (no such group)" in r.message) for r in caplog.records] == [("DEBUG", True)]
