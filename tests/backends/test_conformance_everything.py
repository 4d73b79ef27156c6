"""Whatever is registered is put to the conformance kit by some class: a kernel or a rule without one fails here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from quantdispatch.registry.registry import BUILTIN_KERNELS
from quantdispatch.registry.rules import builtin_rules
from quantdispatch.testing import registry_with

ROOT = Path(__file__).parents[2]
PLUGINS = {"quantdispatch-asym-moe": "quantdispatch_asym_moe", "quantdispatch-awq": "quantdispatch_awq"}
#: kernels that no conformance class takes yet, and the tests of the class behind each
ELSEWHERE = {
    "marlin/vllm_moe": "test_marlin_moe.py",
    "marlin/sglang_moe": "test_marlin_moe.py",
    "marlin/vllm_weights": "test_marlin_linear.py",
    "triton/block_scaled": "interpreted/check_triton_scaled.py",
}
BACKENDS = [
    *sorted((ROOT / "tests" / "backends").glob("test_conformance*.py")),
    ROOT / "tests" / "backends" / "interpreted" / "check_conformance.py",
]


def declared(files: list[Path], attribute: str) -> set[str]:
    """The names in ``attribute`` of the test classes of ``files``, read without importing them: some need an
    interpreter's switch before their first import. A class that names a backend and no kernels means all of them."""
    return {name for file in files for name in _names(ast.parse(file.read_text(encoding="utf-8")), attribute)}


def _names(module: ast.Module, attribute: str) -> Iterator[str]:
    classes = [node for node in module.body if isinstance(node, ast.ClassDef) and node.name.startswith("Test")]
    for node in classes:
        given = {
            target.id: statement.value
            for statement in node.body
            if isinstance(statement, ast.Assign)
            for target in statement.targets
            if isinstance(target, ast.Name)
        }
        if attribute in given:
            yield from ast.literal_eval(given[attribute])
        elif attribute == "kernels" and "backend" in given:
            backend = ast.literal_eval(given["backend"])
            yield from (k.name for k in registry_with().kernels if k.backend == backend and not k.deviations)


def test_every_built_in_kernel() -> None:
    registered = {kernel.name for kernel in registry_with().kernels}
    tested = declared(BACKENDS, "kernels")
    assert tested | ELSEWHERE.keys() == registered
    assert not tested & ELSEWHERE.keys(), "there is a class now: take them out of ELSEWHERE"
    assert all((ROOT / "tests" / "backends" / file).is_file() for file in ELSEWHERE.values())
    assert {name.partition("/")[0] for name in registered} == {"cpu", "marlin", "reference", "torch", "triton"}
    assert len(BUILTIN_KERNELS) == 5


def test_every_built_in_rule() -> None:
    file = ROOT / "tests" / "backends" / "test_conformance_schemes.py"
    assert declared([file], "rules") == {rule.name for rule in builtin_rules()}


@pytest.mark.parametrize("plugin", sorted(PLUGINS))
def test_every_rule_and_kernel_of_a_plugin(plugin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "plugins" / plugin / "src"))
    built_in, with_it = registry_with(), registry_with(PLUGINS[plugin])
    files = sorted((ROOT / "plugins" / plugin / "tests").glob("test_conformance*.py"))
    rules = {rule.name for rule in with_it.rules.rules} - {rule.name for rule in built_in.rules.rules}
    kernels = {kernel.name for kernel in with_it.kernels} - {kernel.name for kernel in built_in.kernels}
    assert rules and declared(files, "rules") == rules
    assert declared(files, "kernels") == kernels


def test_adapters_of_engines_register_no_rule_and_no_kernel() -> None:
    """What they offer is tested with their engines; a plugin of another kind belongs in ``PLUGINS``."""
    others = {folder.name for folder in (ROOT / "plugins").iterdir() if (folder / "pyproject.toml").is_file()}
    assert others - set(PLUGINS) == {"quantdispatch-sglang", "quantdispatch-vllm"}
    for name in others - set(PLUGINS):
        source = (ROOT / "plugins" / name / "pyproject.toml").read_text(encoding="utf-8")
        assert "[project.entry-points.quantdispatch]" not in source


def test_a_kernel_without_a_class_is_found() -> None:
    text = 'class TestA:\n    backend = "cpu"\n    kernels = ("cpu/one",)\n\nclass Base:\n    kernels = ("cpu/two",)\n'
    assert set(_names(ast.parse(text), "kernels")) == {"cpu/one"}
