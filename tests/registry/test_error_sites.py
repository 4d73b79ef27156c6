"""Every place in the package and the plugins that makes an error gives a code of its class, and the code's parts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import quantdispatch
from quantdispatch.registry import errors as errors_module
from quantdispatch.registry.analysis.findings import CODES
from quantdispatch.registry.error_codes import CATALOGUE
from quantdispatch.registry.error_parts import PARTS
from quantdispatch.testing.rows import TableError

ROOT = Path(quantdispatch.__file__).parent
FOLDERS = ("registry", "numerics", "schemes", "backends", "engines", "cli", "testing", "plugins")
CLASSES = {
    name: kind
    for name, kind in [*vars(errors_module).items(), ("TableError", TableError)]
    if isinstance(kind, type) and issubclass(kind, errors_module.QuantDispatchError)
}
#: of these every error is of one kind, which is the class's own code
ONE_KIND = {"PlanError": "QD950", "TableError": "QD960"}


@dataclass(frozen=True)
class Site:
    """``call`` in line ``place``; ``passed``: the parameters of the function around it, which a caller fills."""

    place: str
    call: ast.Call
    passed: frozenset[str]

    @property
    def name(self) -> str:
        function = self.call.func
        return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")

    @property
    def given(self) -> dict[str | None, ast.expr]:
        return {keyword.arg: keyword.value for keyword in self.call.keywords}

    def codes(self) -> list[str]:
        """The codes written here; none where the function around takes it from its caller."""
        value = self.given.get("code")
        if value is None:
            return [ONE_KIND[self.name]] if self.name in ONE_KIND else []
        if isinstance(value, ast.Name) and value.id in self.passed:
            return []
        found = [node.value for node in ast.walk(value) if isinstance(node, ast.Constant)]
        return [code for code in found if isinstance(code, str)]


def _files() -> list[Path]:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in files if not {"tests", "tests_engine"} & set(path.relative_to(ROOT).parts)]


def _sites(tree: ast.AST, where: str, passed: frozenset[str] = frozenset()) -> Iterator[Site]:
    for node in ast.iter_child_nodes(tree):
        inside = passed
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = node.args
            inside = frozenset(a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))
        if isinstance(node, ast.Call):
            site = Site(f"{where}:{node.lineno}", node, passed)
            if site.name in CLASSES:
                yield site
        yield from _sites(node, where, inside)


#: what has the form of an error's code; those of findings are the analysis's
_LIKE = {f"QD{number}" for number in range(500, 1000)} - {row.code for row in CODES.values()}
TREES = {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in _files()}
SITES = [site for where, tree in TREES.items() for site in _sites(tree, where)]
sites = pytest.mark.parametrize("site", SITES, ids=[site.place for site in SITES])


@sites
def test_a_site_gives_a_code_of_its_class(site: Site) -> None:
    value = site.given.get("code")
    if isinstance(value, ast.Name) and value.id in site.passed:
        return  # whoever calls the function gives it: see test_every_code_is_given_somewhere
    assert site.codes(), f"{site.place}: give a code of registry/error_codes.py, or add one there"
    for code in site.codes():
        assert code in CATALOGUE, (site.place, code)
        assert CATALOGUE[code].error == site.name, (site.place, code)


@sites
def test_a_site_names_the_parts_of_its_code(site: Site) -> None:
    if None in site.given:
        return  # some of its parts are in a dict, which the rows of the catalogue look at
    for code in site.codes():
        # the catalogue has a remedy for every code that is given by name
        wanted = {part for part in CATALOGUE[code].names if part != "remedy" or "code" not in site.given}
        assert wanted <= set(site.given), f"{site.place}: name {', '.join(sorted(wanted - set(site.given)))}"
        assert not [p for p in wanted & set(PARTS) if _is_none(site.given.get(p))], site.place


def _is_none(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def test_every_code_is_given_somewhere() -> None:
    """Every code that the source has is one of the catalogue, and every one of the catalogue is in the source."""
    written = {
        node.value
        for where, tree in TREES.items()
        if not where.startswith("registry/error_")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in _LIKE
    }
    assert written == set(CATALOGUE), sorted(written ^ set(CATALOGUE))


def test_no_class_has_another_name_here() -> None:
    """Where it is imported by another name, what is made of it would go unseen."""
    renamed = [
        f"{where}:{node.lineno}"
        for where, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if alias.name in CLASSES and alias.asname not in (None, alias.name)
    ]
    assert not renamed and len(SITES) > 150
