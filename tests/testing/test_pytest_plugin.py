"""The pytest plugin, in pytest runs of its own."""

import subprocess
import sys

import pytest

from quantdispatch.testing import to_toml

pytest_plugins = ["pytester"]

W4 = {"num_bits": 4, "group_size": 128}
GOOD = {"id": "int4 groups", "format": "pack-quantized", "weights": W4, "scheme": "wNa16_int"}
BAD = {**GOOD, "id": "wrong scheme", "scheme": "wNa8_int"}
MODULE = """
from quantdispatch.testing import check_row, dispatch_table

@dispatch_table("rows.toml")
def test_dispatch(row):
    check_row(row)
"""


def table(*rows: dict[str, object]) -> str:
    return to_toml(rows, plugins=[])


def test_a_table_is_collected_by_its_name(pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("a.dispatch.toml").write_text(table(GOOD, BAD))
    pytester.path.joinpath("b.toml").write_text("no table at all")
    result = pytester.runpytest_inprocess("-v", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "a.dispatch.toml::int4 groups PASSED*",
            "a.dispatch.toml::wrong scheme FAILED*",
            'row "wrong scheme" (a.dispatch.toml:9) does not hold',
            "  scheme      expected  wNa8_int",
            "              observed  wNa16_int",
            "  decided by  rule wNa16_int (quantdispatch *, registry/rules/int_weights.py:*)",
            "  kept out    wNa8_int: *inputs is absent, requires present*",
        ]
    )
    assert "checking.py" not in result.stdout.str()


def test_json_and_one_row_by_its_id(pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("a.dispatch.json").write_text('{"plugins": [], "row": [{"id": "x", "rule": "dense"}]}')
    pytester.path.joinpath("a.dispatch.toml").write_text(table(GOOD, BAD))
    pytester.runpytest_inprocess("a.dispatch.json").assert_outcomes(passed=1)
    pytester.runpytest_inprocess("a.dispatch.toml::int4 groups").assert_outcomes(passed=1)
    pytester.runpytest_inprocess("-k", "wrong").assert_outcomes(failed=1, deselected=2)


@pytest.mark.parametrize(
    ("patterns", "collected"),
    [("*.dispatch.toml", 1), ("rows*.toml", 2), ("tables/*.toml", 3), ("*.toml", 6), ("nothing", 0)],
)
def test_which_files_are_tables_can_be_said(pytester: pytest.Pytester, patterns: str, collected: int) -> None:
    pytester.makeini(f"[pytest]\ndispatch_files = {patterns}\n")
    pytester.mkdir("tables")
    for name, rows in {"a.dispatch.toml": 1, "rows.toml": 2, "tables/x.toml": 3}.items():
        pytester.path.joinpath(name).write_text(table(*({**GOOD, "id": f"{n}"} for n in range(rows))))
    result = pytester.runpytest_inprocess("--import-mode=importlib")
    result.assert_outcomes(passed=collected)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a table without rows tests nothing"),
        (table(GOOD, GOOD), 'row "int4 groups" has the id of another row'),
        (table({**GOOD, "kernal": "x"}), 'row "int4 groups": kernal is no key*did you mean kernel?'),
        ("plugins = ['no_such_module']\n[[row]]\nid = 'a'\nrule = 'dense'\n", "*no_such_module*"),
        ("[[row", "not toml"),
    ],
)
def test_a_table_that_cannot_be_meant_is_an_error(pytester: pytest.Pytester, text: str, words: str) -> None:
    pytester.path.joinpath("a.dispatch.toml").write_text(text)
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*{words}*"])
    assert "Traceback" not in result.stdout.str()


def test_a_table_parametrizes_a_function(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=MODULE)
    pytester.path.joinpath("rows.toml").write_text(table(GOOD, BAD))
    result = pytester.runpytest_inprocess("-v", "--import-mode=importlib")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["test_it.py::test_dispatch[[]int4 groups[]] PASSED*", "*observed  wNa16_int"])


def test_a_table_that_cannot_be_read_is_an_error_of_its_module(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=MODULE)
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*TableError: *rows.toml: No such file*"])


VAGUE = {**GOOD, "id": "vague", "insensitive": ["weights.num_bits"]}


@pytest.mark.parametrize("options", [["--dispatch-mutate"], ["--dispatch-mutate=live"], ["--dispatch-mutate=strict"]])
def test_rows_are_mutated_when_asked(pytester: pytest.Pytester, options: list[str]) -> None:
    pytester.makepyfile(test_it=MODULE, test_other="def test_other(): pass\n")
    for name in ("rows.toml", "a.dispatch.toml"):
        pytester.path.joinpath(name).write_text(table(GOOD, VAGUE))
    pytester.runpytest_inprocess().assert_outcomes(passed=5)
    result = pytester.runpytest_inprocess(*options)
    strict = options == ["--dispatch-mutate=strict"]
    result.assert_outcomes(passed=1 if strict else 3, failed=4 if strict else 2)
    result.stdout.fnmatch_lines(['*row "vague": calls weights.num_bits insensitive, and fails with*'])


def test_a_row_that_fails_is_not_mutated(pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("a.dispatch.toml").write_text(table(BAD))
    result = pytester.runpytest_inprocess("--dispatch-mutate")
    result.assert_outcomes(failed=1)
    assert "holds as well" not in result.stdout.str()


def test_rows_are_shared_out_by_xdist(pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("a.dispatch.toml").write_text(table(*({**GOOD, "id": f"row {n}"} for n in range(4))))
    pytester.runpytest_subprocess("-n", "1", "--dispatch-mutate").assert_outcomes(passed=4)


def test_without_the_plugin_tables_are_just_files(pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("a.dispatch.toml").write_text(table(BAD))
    pytester.makepyfile(test_it=MODULE)
    pytester.path.joinpath("rows.toml").write_text(table(GOOD))
    pytester.runpytest_inprocess("-p", "no:quantdispatch").assert_outcomes(passed=1)


LOADED = """
import sys

def test_nothing_of_ours_is_imported():
    ours = {name for name in sys.modules if name.startswith("quantdispatch.")}
    assert ours == {"quantdispatch.testing", "quantdispatch.testing.plugin"}, ours
    assert not {"torch", "pydantic", "numpy"} & set(sys.modules)
"""


def test_a_project_without_tables_pays_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=LOADED)
    pytester.makepyprojecttoml('[tool.pytest.ini_options]\naddopts = "--strict-config --strict-markers"\n')
    pytester.runpytest_subprocess("-p", "no:xdist", "-p", "no:hypothesispytest").assert_outcomes(passed=1)


def test_tables_import_no_tensor_library(pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("a.dispatch.toml").write_text(table({**GOOD, "shape": [256, 256]}))
    pytester.makeconftest(
        """
        import sys

        def pytest_sessionfinish():
            print({"torch", "numpy"} & set(sys.modules) or "light")
        """
    )
    result = pytester.runpytest_subprocess("-s")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*light*"])


def test_every_module_can_be_imported_without_pytest() -> None:
    code = """
import importlib, pkgutil, sys
sys.modules["pytest"] = None
import quantdispatch.testing as package
for found in pkgutil.iter_modules(package.__path__):
    importlib.import_module(f"quantdispatch.testing.{found.name}")
for name in package.__all__:
    getattr(package, name)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd="/")
    assert result.returncode == 0, result.stderr
