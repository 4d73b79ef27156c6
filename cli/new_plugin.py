"""``quantdispatch new-plugin``: a plugin that passes its own conformance tests, to be changed into one's own."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path

from ..registry.errors import ConfigError
from ..registry.kernels import BACKEND_RANKS
from .output import Output

_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_LONGEST = 64
#: files of the template end in it, so that no tool takes them for our own sources
_SUFFIX = ".in"
#: the file or folder that is called after the plugin
_PACKAGE = "package"


def new_plugin_command(name: str, path: Path | None) -> int:
    """Writes the plugin into ``path``/``name`` (``path``: the working folder), and says what comes next. 0."""
    folder = write_plugin(name, path or Path())
    out = Output(sys.stdout)
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        out.line(str(file))
    out.line(f"next: cd {folder}, pip install -e ., pytest --quantdispatch-report report.json")
    return 0


def write_plugin(name: str, path: Path) -> Path:
    """The folder of a new plugin, ``path``/``name``; folders above it are made.

    Raises ``ConfigError`` for a name that no distribution and no package can have, or that is taken, and for a folder
    that is not empty.
    """
    package = package_of(name)
    folder = path / name
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"{folder} is already there, and nothing is overwritten", field="path", observed=str(folder),
            required="a folder that is empty, or does not exist", remedy="take another name or --path, or move it",
            code="QD536",
        )  # fmt: skip
    for parts, text in _template():
        target = folder.joinpath(*(part.replace(_PACKAGE, package) for part in parts))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text.replace("@NAME@", name).replace("@PACKAGE@", package), encoding="utf-8")
    return folder


def package_of(name: str) -> str:
    """The package of a plugin's name: ``my-kernels`` is imported as ``my_kernels``. Raises ``ConfigError``."""
    package = name.replace("-", "_")
    reason = None
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        reason = "is no name that a distribution and a package can share"
    elif keyword.iskeyword(package) or keyword.issoftkeyword(package) or package in sys.stdlib_module_names:
        reason = "is a word or a module of Python itself"
    elif name in BACKEND_RANKS:
        reason = "is a built-in backend"
    elif find_spec(package) is not None:
        reason = f"would hide the module {package}, which is installed here"
    if reason is not None:
        raise ConfigError(
            f"{name!r} {reason}", field="name", observed=name,
            required=f"lower-case words of letters and digits, joined by '-', at most {_LONGEST} characters, not taken",
            remedy="choose a name such as my-kernels",
            code="QD536",
        )  # fmt: skip
    return package


def _template() -> Iterator[tuple[tuple[str, ...], str]]:
    """Relative paths, in parts, and texts."""
    yield from _below(files(__package__).joinpath("templates", "plugin"), ())


def _below(folder: Traversable, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _below(entry, (*above, entry.name))
        elif entry.name.endswith(_SUFFIX):
            yield (*above, entry.name.removesuffix(_SUFFIX)), entry.read_text(encoding="utf-8")
