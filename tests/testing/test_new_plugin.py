"""``quantdispatch new-plugin``: names, folders, and what is written. That it passes: test_plugin_guide.py."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from quantdispatch.cli.app import main
from quantdispatch.cli.new_plugin import package_of, write_plugin
from quantdispatch.registry.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "package"), [("my-kernels", "my_kernels"), ("a1", "a1"), ("w4-marlin-2", "w4_marlin_2")]
)
def test_a_plugin_of_any_name(name: str, package: str, tmp_path: Path) -> None:
    assert package_of(name) == package
    folder = write_plugin(name, tmp_path / "new" / "place")
    files = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert files == {
        "pyproject.toml", "README.md", f"src/{package}/__init__.py", f"src/{package}/scheme.py",
        f"src/{package}/numerics.py", f"src/{package}/kernel.py", f"src/{package}/py.typed",
        f"tests/{package}.dispatch.toml", "tests/test_conformance.py",
    }  # fmt: skip
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == name and project["entry-points"]["quantdispatch"] == {package: package}
    texts = {file: (folder / file).read_text(encoding="utf-8") for file in files}
    assert not any("@NAME@" in text or "@PACKAGE@" in text or ".in" in file for file, text in texts.items())
    for file, text in texts.items():
        assert max(map(len, text.splitlines() or [""])) <= 120 + len(name), file
        if file.endswith(".py"):
            compile(text, file, "exec")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "no name"),
        ("My-Kernels", "no name"),
        ("my_kernels", "no name"),
        ("2fast", "no name"),
        ("a--b", "no name"),
        ("-a", "no name"),
        ("a-", "no name"),
        ("../a", "no name"),
        ("é", "no name"),
        ("a" * 65, "no name"),
        ("class", "of Python itself"),
        ("match", "of Python itself"),
        ("json", "of Python itself"),
        ("cpu", "a built-in backend"),
        ("reference", "a built-in backend"),
        ("pluggy", "would hide the module pluggy"),
        ("quantdispatch", "would hide"),
    ],
)
def test_a_name_that_cannot_be(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        write_plugin(name, tmp_path)
    assert caught.value.field == "name" and caught.value.required and caught.value.remedy
    assert not list(tmp_path.iterdir())


def test_the_template_is_in_the_wheel_and_the_sdist() -> None:
    root = Path(__file__).parents[2]
    patterns = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    # setuptools puts what these name into both
    packed = {file for pattern in patterns["quantdispatch.cli"] for file in (root / "cli").glob(pattern)}
    written = {file for file in (root / "cli" / "templates").rglob("*") if file.is_file()}
    assert packed == written and len(written) == 9


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    folder = write_plugin("mine", tmp_path)
    (folder / "README.md").write_text("edited")
    with pytest.raises(ConfigError, match="nothing is overwritten") as caught:
        write_plugin("mine", tmp_path)
    assert caught.value.field == "path" and (folder / "README.md").read_text() == "edited"
    (tmp_path / "file").write_text("a file")
    with pytest.raises(ConfigError, match="nothing is overwritten"):
        write_plugin("file", tmp_path)
    (tmp_path / "empty").mkdir()
    assert write_plugin("empty", tmp_path) == tmp_path / "empty"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-plugin", "mine"]) == 0
    out = capsys.readouterr().out
    assert "mine/src/mine/kernel.py" in out and "pytest --quantdispatch-report report.json" in out
    assert main(["new-plugin", "mine"]) == 2
    assert "nothing is overwritten" in capsys.readouterr().err
    assert main(["new-plugin", "other", "--path", str(tmp_path / "there")]) == 0
    assert (tmp_path / "there" / "other" / "pyproject.toml").is_file()
    assert main(["new-plugin", "json"]) == 2
    assert "error: ConfigError: 'json'" in capsys.readouterr().err
