"""Conformance classes in pytest runs of their own: outcomes, expected failures, versions, and the report."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from quantdispatch.testing import SchemeConformance, layer, run_conformance
from quantdispatch.testing.conformance.checks import Check, Item
from quantdispatch.testing.conformance.report import document

pytest_plugins = ["pytester"]

MODULE = """
from quantdispatch.testing import SchemeConformance

class TestCache(SchemeConformance):
    rules = ("kv_fp8",)
    capabilities = {"cache"}
    most_layers = 2
    most_samples = 1
"""


def run(pytester: pytest.Pytester, more: str = "", *options: str) -> tuple[pytest.RunResult, dict[str, Any]]:
    pytester.makepyfile(test_it=MODULE + more)
    path = "-p", "no:cacheprovider", "--quantdispatch-report", "out/report.json"
    result = pytester.runpytest_subprocess(*path, *options)
    return result, json.loads((pytester.path / "out" / "report.json").read_text())


def test_what_passes(pytester: pytest.Pytester) -> None:
    result, report = run(pytester)
    assert result.ret == 0
    (subject,) = report["subjects"]
    assert report["version"] == 1 and report["kit"] == "1.1" and report["passed"] and subject["passed"]
    assert (subject["name"], subject["kind"], subject["rules"]) == ("scheme of kv_fp8", "scheme", ["kv_fp8"])
    assert list(subject["tiers"]) == ["load", "table", "numerics", "lifecycle"]
    assert all(tier.get("passed") for tier in subject["tiers"].values())
    counted = sum(count for tier in subject["tiers"].values() for count in tier.values())
    assert counted == len(subject["checks"]) == sum(result.parseoutcomes().values())
    skipped = [check for check in subject["checks"] if check["outcome"] == "skipped"]
    assert skipped and all(check["message"] for check in skipped)


def test_workers_hand_in_what_they_found(pytester: pytest.Pytester) -> None:
    _, alone = run(pytester)
    _, shared = run(pytester, "", "-n2")
    ids = [sorted((c["check"], c["layer"] or "") for s in r["subjects"] for c in s["checks"]) for r in (alone, shared)]
    assert ids[0] == ids[1] and shared["passed"]


@pytest.mark.parametrize(
    ("attributes", "check", "outcome", "words"),
    [
        ('expected_failures = {"numerics/forward": "why"}', "numerics/forward", "unexpected pass", "take it out"),
        ('expected_failures = {"numerics/nothing": "why"}', "load/declarations", "failed", "which no check is called"),
        ('capabilities = {"cache", "wings"}', "load/declarations", "failed", "capabilities has 'wings'"),
        ("capabilities = set()", "table/capabilities", "failed", "'cache' is not among its capabilities"),
        ('capabilities = {"cache", "blocks"}', "table/capabilities", "failed", "'blocks' is declared"),
        ('kit = "2.0"', "load/declarations", "failed", "written for kit 2.0"),
        ('rules = ("no-such",)', "load/collects", "failed", "nothing of that name is registered"),
        ('plugins = ("no_such_module",)', "load/collects", "failed", "No module named 'no_such_module'"),
    ],
)
def test_what_fails(attributes: str, check: str, outcome: str, words: str) -> None:
    class Tried(SchemeConformance):
        rules = ("kv_fp8",)
        capabilities = {"cache"}
        most_layers = 2
        most_samples = 1

    given: dict[str, Any] = {}
    exec(attributes, given)
    made = type("Made", (Tried,), {name: value for name, value in given.items() if name != "__builtins__"})
    report = run_conformance(made)
    assert not report.passed and not report.to_json()["passed"]
    found = [result for result in report.failures if result.item.check.name == check]
    assert found and all(result.outcome == outcome and words in result.message for result in found), str(report)


def test_an_expected_failure_that_fails_is_one(pytester: pytest.Pytester) -> None:
    more = """
    tolerance = {"bfloat16": -1.0, "float16": -1.0, "float32": -1.0}
    expected_failures = {"numerics/forward": "nothing is as exact as that"}
"""
    result, report = run(pytester, more)
    assert result.ret == 0 and report["passed"]
    failed = [check for check in report["subjects"][0]["checks"] if check["outcome"] == "expected failure"]
    assert len(failed) == result.parseoutcomes()["xfailed"] > 0
    assert all(check["message"].startswith("nothing is as exact as that: ") for check in failed)


def test_checks_that_came_later_are_skipped() -> None:
    class Old(SchemeConformance):
        rules = ("kv_fp8",)
        capabilities = {"cache"}
        kit = "1.0"

    later = Item(Check("numerics/new", lambda subject: None, "subject", since="1.1"))
    assert Old().perform(later).outcome == "skipped" and "came with kit 1.1" in Old().perform(later).message
    assert Old().perform(Item(Check("numerics/old", lambda subject: None, "subject"))).outcome == "passed"


def test_nothing_checked_is_nothing_passed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="def test_nothing(): pass")
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "--quantdispatch-report", "report.json")
    report = json.loads((pytester.path / "report.json").read_text())
    assert report["subjects"] == [] and not report["passed"]
    assert document([])["passed"] is False


def test_layers_by_the_spelling_of_compressed_tensors() -> None:
    made = layer({"num_bits": 4, "group_size": 48, "symmetric": False}, shape=(32, 96), format="mine", bias=True)
    assert (made.n, made.k, made.weights and made.weights.strategy) == (32, 96, "group")
    assert made.capabilities == {"zero-points", "bias", "bfloat16"}
    assert str(made) == "int4 asymmetric, group 48; 32x96; bfloat16; mine; bias"
    with pytest.raises(TypeError):
        layer(None, wings=2)


def test_the_package_is_found_without_torch_and_pytest() -> None:
    names = "quantdispatch.testing, quantdispatch.testing.plugin"
    code = f"import sys; import {names}; print({{'torch', 'pytest'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set()", done.stderr
