"""The generated pages are what the data gives, and every piece of the data stands in them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from quantdispatch.cli.app import main
from quantdispatch.cli.docs import pages
from quantdispatch.registry.peers.compare import engines
from quantdispatch.registry.peers.targets import TARGET_DIFFERENCES
from quantdispatch.registry.registry import build

DOCS = Path(__file__).parents[2] / "docs"


@cache
def generated() -> dict[str, str]:
    return pages()


@pytest.mark.parametrize("name", ["rules.md", "kernels.md", "engine-differences.md"])
def test_a_page_is_up_to_date(name: str) -> None:
    written = (DOCS / name).read_text(encoding="utf-8")
    assert written == generated()[name], "run: quantdispatch rules --docs docs"


def test_every_fault_of_every_case_stands_in_the_page() -> None:
    """So that none can be removed or changed, and no case lose its scheme, without the page being out of date."""
    page = generated()["engine-differences.md"]
    for engine in engines():
        linear = {id(case) for case in engine.chains["linear"]}
        text = page[page.index(f"## {engine.label}") :]
        for kind, chain in engine.chains.items():
            for case in chain:
                assert all(f"| `{scheme}` | " in text and f"`{case.runs}`" in text for scheme in case.same_as)
                if kind == "linear" or id(case) not in linear:
                    for fault in case.faults:
                        assert f"| {case.name} | `{case.runs}` | {fault.does} |" in text, (engine.name, kind, case.name)
        assert all(fault.does in text for fault in engine.faults)
    assert all(difference.ours in page for difference in TARGET_DIFFERENCES)


def test_every_rule_and_kernel_has_a_section() -> None:
    registry = build()
    assert all(f"\n## {rule.name}\n" in generated()["rules.md"] for rule in registry.rules.rules)
    assert all(f"\n## {kernel.name}\n" in generated()["kernels.md"] for kernel in registry.kernels)


def test_the_command_writes_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("quantdispatch.cli.docs.pages", lambda: {"rules.md": "new\n", "kernels.md": "same\n"})
    (tmp_path / "kernels.md").write_text("same\n", encoding="utf-8")
    assert main(["rules", "--docs", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path / 'rules.md'}: written",
        f"{tmp_path / 'kernels.md'}: as it was",
    ]
    assert (tmp_path / "rules.md").read_text(encoding="utf-8") == "new\n"


@pytest.mark.parametrize("more", [["--check"], ["--coverage"], ["--json"]])
def test_pages_go_with_no_other_report(more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "--docs", str(tmp_path), *more]) == 2
    assert "--docs" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_bad_usage(tmp_path: Path) -> None:
    assert main(["rules", "--docs", str(tmp_path / "none")]) == 2
